"""Takes pictures of a server's page: chat and dashboard, empty and under load, light and dark, wide and on a phone.

Needs Chromium, chromedriver and pngquant. The server must be a fresh one:

    stepwell serve tiny/model --served-model-name tiny --device-memory 24MiB --host-memory 128MiB

    python tools/pictures.py http://127.0.0.1:8000 docs/pictures

What the chat asks is for the small model in `tiny/model`; the later answers show what came from the cache.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

_DOORS = [
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "black",
    "orange",
    "purple",
    "brown",
    "grey",
    "pink",
    "silver",
    "golden",
]
QUESTIONS = (
    " ".join(f"The code of the {colour} door is {4711 + 97 * i}." for i, colour in enumerate(_DOORS))
    + " What is the code of the green door?",
    "What is the code of the silver door?",
    "What is the code of the brown door?",
)
WIDE, TALL, PHONE = (1200, 900), (1200, 1440), (390, 844)
_LONGEST_ANSWER_S = 300


def browser() -> Any:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium") or shutil.which("google-chrome"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def show(driver: Any, size: tuple[int, int], scheme: str) -> None:
    """From now on in this size (CSS pixels) and colour scheme."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


def wait(driver: Any, expression: str) -> None:
    """Until a JavaScript expression is true. Raises TimeoutError."""
    deadline = time.monotonic() + _LONGEST_ANSWER_S
    while not driver.execute_script(f"return {expression}"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the page did not come to: {expression}")
        time.sleep(0.1)


def converse(driver: Any, url: str, tokens: int) -> None:
    """Ask all questions in the page's chat."""
    driver.get(url + "/")
    wait(driver, "document.getElementById('state').textContent === 'Ready'")
    wanted = (
        f"document.getElementById('max-tokens').value = '{tokens}'; document.getElementById('temperature').value = '0'"
    )
    driver.execute_script(wanted)
    for question in QUESTIONS:
        box = driver.find_element(By.ID, "say")
        box.send_keys(question, Keys.ENTER)
        wait(driver, "document.getElementById('send').disabled === false")


def keep(driver: Any, file: Path) -> None:
    """What is seen now, as a picture of at most 256 colours."""
    whole = driver.get_screenshot_as_png()
    small = subprocess.run(
        ["pngquant", "--strip", "--speed", "1", "-"], input=whole, capture_output=True, check=True, timeout=60
    )
    file.write_bytes(small.stdout)
    print(f"{file}: {len(small.stdout) // 1000} kB")


def load(url: str, until: threading.Event) -> None:
    """Conversations of agents, one after another, each under a session of its own."""
    model = httpx.get(url + "/v1/models", timeout=60).json()["data"][0]["id"]
    turns: list[list[dict[str, str]]] = [[] for _ in range(5)]
    for at in itertools.count():
        said = turns[at % len(turns)]
        if until.is_set():
            return
        if len(said) > 8:
            said.clear()
        code = f"The codes of {at}: " + " ".join(
            f"The code of the {door} lamp is {at * 37 + i}." for i, door in enumerate(_DOORS)
        )
        said.append({"role": "user", "content": f"{code} What is the code of the {_DOORS[at % len(_DOORS)]} lamp?"})
        body = {
            "model": model,
            "messages": said,
            "max_tokens": 16,
            "temperature": 0,
            "session_id": f"agent {at % len(turns)}",
        }
        answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=120).json()
        said.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})


def dashboard(driver: Any, url: str, size: tuple[int, int], scheme: str, file: Path) -> None:
    show(driver, size, scheme)
    driver.get(url + "/dashboard")
    wait(driver, "document.getElementById('state').textContent === 'Live'")
    time.sleep(2)
    keep(driver, file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take pictures of a server's page.")
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=40, help="most tokens of an answer in the chat")
    parser.add_argument("--seconds", type=float, default=60, help="how long the load lasts before it is looked at")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    url, driver = given.url.rstrip("/"), browser()
    try:
        take(driver, url, given.folder, given.tokens, given.seconds)
    finally:
        driver.quit()


def take(driver: Any, url: str, folder: Path, tokens: int, seconds: float) -> None:
    """All pictures, those of a server that has nothing to tell first."""
    dashboard(driver, url, TALL, "light", folder / "dashboard-empty.png")
    show(driver, WIDE, "light")
    driver.get(url + "/")
    wait(driver, "document.getElementById('state').textContent === 'Ready'")
    keep(driver, folder / "chat-empty.png")
    for scheme, name, size in (("light", "wide", WIDE), ("dark", "phone", PHONE)):
        show(driver, size, scheme)
        converse(driver, url, tokens)
        keep(driver, folder / f"chat-{scheme}-{name}.png")
        driver.execute_script("sessionStorage.clear()")
    done = threading.Event()
    callers = [threading.Thread(target=load, args=(url, done), daemon=True) for _ in range(2)]
    for caller in callers:
        caller.start()
    time.sleep(seconds)
    for scheme, name, size in (("light", "wide", TALL), ("dark", "wide", TALL), ("light", "phone", PHONE)):
        dashboard(driver, url, size, scheme, folder / f"dashboard-{scheme}-{name}.png")
    done.set()
    for caller in callers:
        caller.join(60)


if __name__ == "__main__":
    main()
