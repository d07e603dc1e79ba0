"""The chat in a terminal: with a server, with an engine, and with people who press Ctrl-C."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from stepwell.base.errors import ConfigError
from stepwell.chat.session import Session
from stepwell.chat.talkers import LocalTalker, Piece, RemoteTalker, Talker, Turn
from stepwell.engine.config import EngineFacts
from stepwell.engine.llm import LocalEngine
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from tests.engine.scripted import CONTEXT, VOCAB, ScriptedLoop
from tests.server.harness import running
from tests.server.http.test_gate import KEY


class Typist:
    """Someone who types these lines and then Ctrl-D. `below`: what stood under each line."""

    def __init__(self, *lines: str) -> None:
        self.below: list[str] = []
        self._left: Iterator[str] = iter(lines)

    def line(self, below: Callable[[], str]) -> str | None:
        self.below.append(below())
        return next(self._left, None)


def screen(talker: Talker, *lines: str, system: str = "") -> str:
    out = io.StringIO()
    Session.begin(talker, Console(file=out, width=200), system).talk(Typist(*lines))
    return out.getvalue()


def local(tokenizer: Tokenizer, loop: ScriptedLoop, max_tokens: int = 20) -> LocalTalker:
    return LocalTalker(LocalEngine(loop, tokenizer, EngineFacts("tiny", CONTEXT, VOCAB)), max_tokens, 0.0)


def test_a_server_answers_and_each_turn_tells_what_was_cached(tokenizer: Tokenizer) -> None:
    with running(tokenizer) as server:
        shown = screen(RemoteTalker(server.url, "", 12, 0.0), "the water and the land", "and again")
    assert shown.count("prompt tokens cached") == 2 and shown.count("12 tokens") == 2
    assert "tiny" in shown and "first after" in shown
    assert "device" in shown.splitlines()[-1], "the second turn begins with the first"
    assert f"of {CONTEXT:,} tokens" in shown, "the server tells how long a conversation may be"


def test_an_engine_in_this_process_answers_the_same_way(tokenizer: Tokenizer) -> None:
    loop = ScriptedLoop()
    shown = screen(local(tokenizer, loop), "the water and the land", "", "and again")
    assert shown.count("first after") == 2 and not loop.busy
    text = tokenizer.decode(loop.seen[-1].prompt.tolist())
    assert text.startswith("user\nthe water and the land\nassistant\n") and text.endswith(
        "user\nand again\nassistant\n"
    )


def test_commands_start_afresh_and_end(tokenizer: Tokenizer) -> None:
    loop = ScriptedLoop()
    said = ("one", "/new", "two", "/system be brief", "three", "/what", "/quit", "four")
    shown = screen(local(tokenizer, loop, 2), *said, system="be kind")
    prompts = [tokenizer.decode(request.prompt.tolist()) for request in loop.seen]
    assert len(prompts) == 3
    assert "be kind" in prompts[0] and "be kind" in prompts[1] and "one" not in prompts[1]
    assert "be brief" in prompts[2] and "be kind" not in prompts[2]
    assert shown.count("ends, as Ctrl-D does") == 1, "a command that is none is answered by those there are"


class Impatient:
    """A talker whose listener presses Ctrl-C, or whose server fails, after the first word."""

    name = "impatient"
    context = 100

    def __init__(self, error: type[BaseException]) -> None:
        self.heard: list[list[dict[str, str]]] = []
        self._error = error

    def answer(self, messages):  # type: ignore[no-untyped-def]
        self.heard.append(messages)
        yield Piece("thinking", thought=True)
        yield Piece("well")
        if len(self.heard) == 1:
            raise self._error("enough")
        return Turn(10, 4, 2, 1, 1, 0.5, 0.5)


def test_a_stopped_answer_stays_in_the_conversation_without_its_thoughts() -> None:
    talker = Impatient(KeyboardInterrupt)
    shown = screen(talker, "one", "two")
    assert "stopped" in shown and "7 of 10 prompt tokens cached (4 device, 2 host, 1 disk)" in shown
    assert [m["content"] for m in talker.heard[1]] == ["one", "well", "two"]


def test_a_failed_answer_is_told_and_its_question_taken_back() -> None:
    talker = Impatient(ConfigError)
    shown = screen(talker, "one", "two")
    assert "error: enough" in shown
    assert [m["content"] for m in talker.heard[1]] == ["two"]


def test_a_key_is_sent_and_a_missing_server_is_told(tokenizer: Tokenizer) -> None:
    with running(tokenizer, keys=Keys([KEY])) as server:
        assert "2 tokens" in screen(RemoteTalker(server.url + "/v1/", KEY, 2, 0.0), "hello")
        with pytest.raises(ConfigError, match="a key is needed"):
            RemoteTalker(server.url, "", 2, 0.0)
        url = server.url
    with pytest.raises(ConfigError, match="no server answers"):
        RemoteTalker(url, "", 2, 0.0)


class Echo:
    """Answers with the number of the questions it has heard."""

    name, context = "echo", 1000

    def __init__(self) -> None:
        self.heard: list[list[str]] = []

    def answer(self, messages):  # type: ignore[no-untyped-def]
        self.heard.append([m["content"] for m in messages])
        yield Piece(f"answer {len(self.heard)}")
        return Turn(100 * len(messages), 0, 0, 0, 50, 0.1, 0.2)


def test_a_branch_leaves_before_a_question_and_the_other_one_stays() -> None:
    talker = Echo()
    shown = screen(talker, "one", "two", "/branch 2", "three", "/switch 1", "four", "/branches", "/branch", "five")
    assert talker.heard[2] == ["one", "answer 1", "three"], "the second question is not part of the branch"
    assert talker.heard[3] == ["one", "answer 1", "two", "answer 2", "four"], "the first branch goes on where it was"
    assert talker.heard[4] == ["one", "answer 1", "two", "answer 2", "five"], (
        "without a number: before the last question"
    )
    assert "→ 1: 3 questions, last: four" in shown and "  2: 2 questions, last: three" in shown


def test_wrong_commands_are_told_and_change_nothing(tmp_path: Path) -> None:
    talker = Echo()
    lines = ("/branch", "one", "/branch 7", "/branch x", "/switch 2", "/save", f"/save {tmp_path}/no/talk.md", "two")
    shown = screen(talker, *lines)
    assert shown.count("error:") == 6
    assert "there is no question 7: 1 were asked" in shown and "there is no branch 2: there are 1" in shown
    assert "cannot write" in shown and talker.heard[1] == ["one", "answer 1", "two"]


def test_a_conversation_is_saved_as_messages_or_as_text(tmp_path: Path) -> None:
    screen(Echo(), "one [b]", f"/save {tmp_path}/talk.json", f"/save {tmp_path}/talk.md", system="be kind")
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [(m["role"], m["content"]) for m in saved] == [
        ("system", "be kind"),
        ("user", "one [b]"),
        ("assistant", "answer 1"),
    ]
    assert (tmp_path / "talk.md").read_text().startswith("## Instructions\n\nbe kind\n\n## You\n\none [b]\n")


def test_what_is_below_the_line_tells_how_full_the_context_is() -> None:
    typist = Typist("one", "/branch 1")
    Session.begin(Echo(), Console(file=io.StringIO())).talk(typist)
    assert typist.below[0] == "a new conversation"
    assert typist.below[1] == "context ██░░░░░░░░░░ 15%, 150 of 1,000 tokens"
    assert typist.below[2] == "branch 2 of 2"


class Hostile(BaseHTTPRequestHandler):
    """A server that would like to command the terminal of whoever talks to it."""

    def do_GET(self) -> None:
        self._say(200, {"data": [{"id": "tiny\x1b]0;owned\x07"}]})

    def do_POST(self) -> None:
        self._say(400, {"error": {"message": "no\x1b[2J\x9b31m"}})

    def _say(self, status: int, body: object) -> None:
        told = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


def test_neither_the_name_of_a_model_nor_an_error_commands_the_terminal() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            shown = screen(RemoteTalker(f"http://127.0.0.1:{server.server_port}", "", 12, 0.0), "hi")
        finally:
            server.shutdown()
            thread.join()
    assert "tiny]0;owned" in shown and "400: no[2J31m" in shown
    assert not any(mark in shown for mark in "\x1b\x07\x9b")
