"""A headless Chromium for tests of pages, driven through its own WebDriver over plain HTTP."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PHONE = 390
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def missing() -> str:
    """Why no browser can be had here; empty where one can."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)} (apt install chromium chromium-driver)" if absent else ""


@dataclass(frozen=True, slots=True)
class Browser:
    """One window. Sizes are CSS pixels."""

    session: str

    def open(self, page: Path, width: int, scheme: Literal["light", "dark"]) -> None:
        """Load a file at this width and in this colour scheme, with no network."""
        self._devtools("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._devtools("Network.emulateNetworkConditions", offline)
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width <= PHONE}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._devtools("Emulation.setEmulatedMedia", media)
        _call(f"{self.session}/url", {"url": page.as_uri()})

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return _call(f"{self.session}/execute/sync", {"script": f"return {script}", "args": []})

    def complaints(self) -> list[str]:
        """What was written to the console as a warning or an error since the last call."""
        found = _call(f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("WARNING", "SEVERE")]

    def _devtools(self, command: str, params: dict[str, Any]) -> None:
        _call(f"{self.session}/goog/cdp/execute", {"cmd": command, "params": params})


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(base)
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
        ]
        options = {"args": arguments, "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = _call(f"{base}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(f"{base}/session/{session}")
        finally:
            _call(f"{base}/session/{session}", None, "DELETE")
    finally:
        driver.terminate()
        driver.wait(10)


def _wait(base: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            _call(f"{base}/status", None, "GET")
            return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _call(url: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with _DIRECT.open(request, timeout=60) as answer:
        return json.load(answer)["value"]
