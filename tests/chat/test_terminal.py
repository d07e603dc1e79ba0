"""`stepwell chat` in a terminal of its own: keys, history, Ctrl-C. Every wait has a deadline."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from stepwell.base.children import command, environment

_DEADLINE_S = 30.0
_UP, _CTRL_C, _CTRL_D, _ENTER = "\x1b[A", "\x03", "\x04", "\r"


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, words: list[str], home: Path) -> None:
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        given = environment(TERM="xterm", HOME=str(home))
        self._process = subprocess.Popen(words, stdin=far, stdout=far, stderr=far, env=given, start_new_session=True)
        os.close(far)
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_DEADLINE_S)
        os.close(self._near)

    def type(self, keys: str) -> None:
        """Press these keys once a line is read. Before, the terminal itself would take Ctrl-D and Ctrl-C."""
        end = time.monotonic() + _DEADLINE_S
        while termios.tcgetattr(self._near)[3] & termios.ICANON:
            assert time.monotonic() < end, f"no line is read after {self._text!r}"
            time.sleep(0.02)
        os.write(self._near, keys.encode())

    def interrupt(self) -> None:
        """What Ctrl-C does while no line is read: the terminal of a session without a controlling one sends no signal itself."""
        os.kill(self._process.pid, signal.SIGINT)

    def until(self, words: str) -> str:
        """Everything up to these words, without colours; what follows them is left for the next call. Fails at the deadline."""
        end = time.monotonic() + _DEADLINE_S
        while words not in self._text:
            ready, _, _ = select.select([self._near], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {words!r} in {self._text!r}"
            self._text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._read())
        before, _, self._text = self._text.partition(words)
        return before + words

    def status(self) -> int:
        return self._process.wait(_DEADLINE_S)

    def _read(self) -> str:
        try:
            text = os.read(self._near, 65536).decode("utf-8", "replace")
            os.write(self._near, b"\x1b[1;1R" * text.count("\x1b[6n"))  # it asks where the cursor is
            return text
        except OSError as error:  # the other end is closed
            raise AssertionError(f"the command has ended: {self._text!r}") from error


class Server(http.server.BaseHTTPRequestHandler):
    """A server of the OpenAI API that is none of ours: no tiers, no length of the context; "slow" makes it go on until it is left."""

    heard: list[Any] = []  # noqa: RUF012 (one server at a time)
    left = threading.Event()

    def do_GET(self) -> None:
        self._send("application/json", json.dumps({"object": "list", "data": [{"id": "other"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).heard.append(body)
        said = body["messages"][-1]["content"]
        self._send("text/event-stream", self._chunk("**Bold** answer to " + said))
        try:
            for _ in range(200 if said == "slow" else 0):
                self.wfile.write(self._chunk(" more").encode())
                time.sleep(0.1)
        except OSError:
            type(self).left.set()
            return
        self.wfile.write((self._chunk("", "stop") + "data: [DONE]\n\n").encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    @staticmethod
    def _chunk(text: str, finish: str | None = None) -> str:
        return (
            f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}, 'finish_reason': finish}]})}\n\n"
        )


@pytest.fixture
def other() -> Iterator[str]:
    Server.heard.clear()
    Server.left.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_conversation_with_another_server_in_a_terminal(other: str, tmp_path: Path) -> None:
    with Terminal(command("stepwell", "chat", other), tmp_path) as terminal:
        terminal.until("a new conversation")
        terminal.type("hello" + _ENTER)
        assert "**" not in terminal.until("Bold answer to hello"), "Markdown is drawn"
        terminal.until("first after")
        terminal.until("a new conversation")
        terminal.type("slow" + _ENTER)
        terminal.until("more more more")
        terminal.interrupt()
        terminal.until("stopped")
        terminal.type(_UP + _UP + _ENTER)
        terminal.until("Bold answer to hello")
        terminal.until("first after")
        terminal.type("half a question" + _CTRL_C)
        terminal.type("/save " + str(tmp_path / "talk.json") + _ENTER)
        terminal.until("6 messages")
        terminal.type(_CTRL_D)
        assert terminal.status() == 0
    assert Server.left.wait(_DEADLINE_S), "a stopped answer ends at the server as well"
    assert [body["messages"][-1]["content"] for body in Server.heard] == ["hello", "slow", "hello"]
    assert "more" in json.loads((tmp_path / "talk.json").read_text())[3]["content"], "as far as it came"
    history = tmp_path / ".local/state/stepwell/chat-history"
    assert "+slow" in history.read_text() and history.stat().st_mode & 0o777 == 0o600


def test_questions_from_a_pipe_are_answered_as_plain_text(other: str, tmp_path: Path) -> None:
    words = command("stepwell", "chat", other)
    done = subprocess.run(
        words, input="one\n", capture_output=True, text=True, timeout=_DEADLINE_S, env=environment(HOME=str(tmp_path))
    )
    assert done.returncode == 0 and "**Bold** answer to one" in done.stdout and "\x1b" not in done.stdout
    assert not (tmp_path / ".local").exists()


def test_a_chat_with_a_url_imports_neither_torch_nor_our_server(other: str) -> None:
    program = f"""
import sys
from stepwell.chat.talkers import open_talker
with open_talker({other!r}, "", None, 0.0, {{}}) as talker:
    print("".join(piece.text for piece in talker.answer([{{"role": "user", "content": "hi"}}])))
print(sorted({{"torch", "transformers", "openai", "fastapi", "zmq", "stepwell.server"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=_DEADLINE_S, env=environment()
    )
    assert done.stdout == "**Bold** answer to hi\n[]\n", done.stderr
