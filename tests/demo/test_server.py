from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from stepwell.demo.server import Server, ServerFailed, free_port

HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(b"fine")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for_log(server: Server, word: str) -> str:
    for _ in range(200):
        for line in server.log_lines():
            if word in line:
                return line
        time.sleep(0.05)
    raise AssertionError(f"{word!r} never appeared")


def start(tmp_path: Path, program: str) -> Server:
    port = free_port()
    return Server([sys.executable, "-c", program, str(port)], port, tmp_path / "log")


def test_healthy_server_is_waited_for_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with start(tmp_path, HEALTHY) as server:
        server.wait_until_healthy(30)
        assert server.read("/health") == "fine"
        child = int(wait_for_log(server, "child").split()[1])
        assert running(child)
    for _ in range(200):
        if not running(child):
            break
        time.sleep(0.05)
    assert not running(child)


def test_server_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        start(tmp_path, "raise SystemExit('no such model')") as server,
        pytest.raises(ServerFailed, match="status 1") as failed,
    ):
        server.wait_until_healthy(30)
    assert "no such model" in failed.value.log


def test_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with start(tmp_path, "import time; time.sleep(600)") as server, pytest.raises(ServerFailed, match="not ready"):
        server.wait_until_healthy(0.2)


def test_server_that_ignores_a_polite_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.demo.server._GRACE", 0.2)
    server = start(tmp_path, STUBBORN)
    wait_for_log(server, "up")
    server.stop()
    server.stop()
    with pytest.raises(ServerFailed, match="ended"):
        server.wait_until_healthy(1)


def test_free_port_is_not_taken() -> None:
    assert 1024 <= free_port() <= 65535
