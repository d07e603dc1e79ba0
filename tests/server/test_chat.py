"""The chat in a terminal: with a server, with an engine, and with people who press Ctrl-C."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from stepwell.base.errors import ConfigError
from stepwell.engine.config import EngineFacts
from stepwell.engine.llm import LocalEngine
from stepwell.engine.tokenizer import Tokenizer
from stepwell.server.commands.chat import LocalTalker, Piece, RemoteTalker, Talker, Turn, chat
from stepwell.server.http.keys import Keys
from tests.engine.scripted import CONTEXT, VOCAB, ScriptedLoop
from tests.server.harness import Running, running
from tests.server.test_gate import KEY


def keyboard(*lines: str) -> Callable[[str], str]:
    """Someone who types these lines and then Ctrl-D."""
    left: Iterator[str] = iter(lines)

    def read(prompt: str) -> str:
        line = next(left, None)
        if line is None:
            raise EOFError
        return line

    return read


def screen(talker: Talker, *lines: str, system: str = "") -> str:
    out = io.StringIO()
    chat(talker, Console(file=out, width=200), keyboard(*lines), system)
    return out.getvalue()


def local(tokenizer: Tokenizer, loop: ScriptedLoop, max_tokens: int = 20) -> LocalTalker:
    return LocalTalker(LocalEngine(loop, tokenizer, EngineFacts("tiny", CONTEXT, VOCAB)), max_tokens, 0.0)


def test_a_server_answers_and_each_turn_tells_what_was_cached(server: Running) -> None:
    shown = screen(RemoteTalker(server.url, "", 12, 0.0), "the water and the land", "and again")
    assert shown.count("prompt tokens cached") == 2 and shown.count("12 tokens") == 2
    assert "tiny" in shown and "first after" in shown
    assert "device" in shown.splitlines()[-1], "the second turn begins with the first"


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
    assert shown.count("/quit ends") == 2


class Impatient:
    """A talker whose listener presses Ctrl-C, or whose server fails, after the first word."""

    name = "impatient"

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
