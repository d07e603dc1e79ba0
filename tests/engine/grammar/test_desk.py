"""Grammar processes: started when they are needed, started again when they end, and ended with whoever asks them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from stepwell.engine.grammar import desk as desks
from stepwell.engine.grammar import wire
from stepwell.engine.grammar.client import GrammarProcess
from stepwell.engine.grammar.desk import Desk, Order
from tests.server.harness import eventually
from tests.server.templates import talking_tokenizer

VOCAB = 320
ENDLESS = LLMatcher.grammar_from_lark(
    "start: A\nA: " + " & ".join(f"/(.*[ab].{{{i}}}.*)/" for i in range(1, 900)) + "\n"
).encode()
"""Takes for ever to be read."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[GrammarProcess]:
    talking_tokenizer(tmp_path)
    made = GrammarProcess(wire.Start(str(tmp_path), VOCAB, (2, 0), 4))
    yield made
    made.close()


def order(parser: int, pattern: str, answer: list[int], given: int = 0) -> Order:
    text = str(LLMatcher.grammar_from_regex(pattern)).encode()
    return Order(parser, text, wire.digest(text), given, np.array(answer, np.int32))


def allowed(told: wire.Told) -> list[int]:
    assert told.fault == ""
    return np.flatnonzero(np.unpackbits(np.frombuffer(told.bits, np.uint8), bitorder="little", count=VOCAB)).tolist()


def pid(process: GrammarProcess) -> int:
    assert process._running is not None
    return process._running.process.pid


def test_nothing_runs_until_something_is_asked(process: GrammarProcess) -> None:
    assert process._running is None
    assert process.ask([wire.Next(1, b"unknown", 0, [])])[0].result(60) == wire.Lost()
    assert os.getpgid(pid(process)) == pid(process), "Ctrl-C in a terminal is no business of it"


def test_answers_are_followed_together_and_what_is_unknown_is_read_on_the_way(process: GrammarProcess) -> None:
    desk = Desk(process)
    one, other = map(allowed, desk.follow([order(1, "ab", []), order(2, "c+", [])]))
    (token,) = other
    assert one != other
    assert [allowed(told)[0] for told in desk.follow([order(2, "c+", [token], 1), order(2, "c+", [token] * 2, 1)])]


def test_answers_go_on_when_the_process_has_been_ended(process: GrammarProcess) -> None:
    desk = Desk(process)
    (before,) = map(allowed, desk.follow([order(1, "c+", [])]))
    first = pid(process)
    (after,) = map(allowed, desk.follow([order(1, "c+", before)]))
    os.kill(first, signal.SIGKILL)
    assert [allowed(told) for told in desk.follow([order(1, "c+", before * 2, 1)])] == [after]
    assert pid(process) != first
    assert not Path(f"/proc/{first}").exists(), "nobody is left behind"


def test_what_ends_the_process_is_refused_and_what_waits_behind_it_goes_on(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parser 2 ends the process, as a mask that needs more memory than there is would."""
    asked: list[list[int]] = []
    usual = GrammarProcess.ask

    def ends(client: GrammarProcess, questions: Sequence[wire.Question]) -> list[Future[wire.Answer]]:
        parsers = [what.parser for what in questions if isinstance(what, wire.Next)]
        asked.append(parsers)
        if 2 in parsers:
            usual(client, [wire.Next(0, b"", 0, [])])[0].result(60)
            os.kill(pid(client), signal.SIGSTOP)  # so that it answers nothing before its end
        answers = usual(client, questions)
        if 2 in parsers:
            os.kill(pid(client), signal.SIGKILL)
        return answers

    desk = Desk(process)
    assert [allowed(told) for told in desk.follow([order(9, "c+", [])])]
    monkeypatch.setattr(GrammarProcess, "ask", ends)
    told = list(desk.follow([order(2, "a+", []), order(3, "b+", [])]))
    assert "cannot be followed" in told[0].fault and "make it simpler" in told[0].fault
    assert allowed(told[1])
    assert asked[:2] == [[2, 3], [2, 3]], "it may not have been its fault: it was asked once more"


def test_a_mask_that_takes_for_ever_ends_the_process(process: GrammarProcess) -> None:
    """The signal of the timer ends it even where the interpreter's lock is held: nothing in Python handles it."""
    desk = Desk(process)
    assert [allowed(told) for told in desk.follow([order(1, "c+", [])])]
    (answer,) = process.ask([wire.Read(ENDLESS)])
    os.kill(pid(process), signal.SIGPROF)
    with pytest.raises(desks.Ended, match="too long for one mask") as told:
        answer.result(60)
    assert told.value.slow


def test_a_grammar_that_is_read_for_ever_is_refused_and_its_process_ended(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(process)
    assert [allowed(told) for told in desk.follow([order(1, "c+", [])])]
    before = pid(process)
    with monkeypatch.context() as patch:
        patch.setattr(desks, "READ_SECONDS", 0.2)
        assert "takes more than 0.2 s to read" in desk.read(ENDLESS).fault
    assert [allowed(told) for told in desk.follow([order(1, "c+", [])])]
    assert pid(process) != before


def test_masks_are_told_while_a_grammar_is_being_read(process: GrammarProcess) -> None:
    (reading,) = process.ask([wire.Read(ENDLESS)])
    for parser in range(5):
        assert [allowed(told) for told in Desk(process).follow([order(parser, "c+", [])])]
    assert not reading.done()


def test_a_closed_process_answers_nothing_and_is_gone(process: GrammarProcess) -> None:
    (reading,) = process.ask([wire.Read(ENDLESS)])
    number = pid(process)
    process.close()
    with pytest.raises(desks.Ended):
        reading.result(0)
    assert not Path(f"/proc/{number}").exists()
    (told,) = Desk(process).follow([order(1, "c+", [])])
    assert "the engine is closing" in told.fault and "the engine is closing" in Desk(process).read(b"x").fault


def test_without_its_vocabulary_it_refuses(tmp_path: Path) -> None:
    process = GrammarProcess(wire.Start(str(tmp_path), VOCAB, (2,), 4))
    assert "tokenizer.json" in Desk(process).read(b"x").fault
    (told,) = Desk(process).follow([order(1, "c+", [])])
    assert "tokenizer.json" in told.fault
    process.close()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_engine_whatever_ends_that(tmp_path: Path, ending: signal.Signals) -> None:
    talking_tokenizer(tmp_path)
    engine = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from stepwell.engine.grammar import client, wire\n"
            "process = client.GrammarProcess(wire.Start(sys.argv[1], 320, (2,), 4))\n"
            "process.ask([wire.Next(1, b'', 0, [])])[0].result()\n"
            "process.ask([wire.Read(sys.stdin.buffer.read())])\n"
            "print(process._running.process.pid, flush=True)\n"
            "process.ask([wire.Read(b'x')])[0].result()\n"
            "import time; time.sleep(60)\n",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert engine.stdin is not None and engine.stdout is not None
    engine.stdin.write(ENDLESS)
    engine.stdin.close()
    helper = int(engine.stdout.readline())
    engine.send_signal(ending)
    engine.wait(20)
    engine.stdout.close()
    assert eventually(lambda: not Path(f"/proc/{helper}/exe").exists())
