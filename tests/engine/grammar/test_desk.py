"""Grammar processes: started when they are needed, started again when they end, and ended with whoever asks them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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
    assert not Path(f"/proc/{first}").exists(), "nobody is left behind"
    assert [allowed(told) for told in desk.follow([order(1, "c+", before * 2, 1)])] == [after]
    assert pid(process) != first


class Ending:
    """Ends a process as soon as it has been asked something: not before all of it is asked, and before it is answered."""

    def __init__(self, patch: pytest.MonkeyPatch, when: Callable[[wire.Question], bool]) -> None:
        self.asked: list[tuple[int, list[wire.Question]]] = []
        usual = GrammarProcess.ask

        def ask(client: GrammarProcess, questions: Sequence[wire.Question]) -> list[Future[wire.Answer]]:
            ends = any(map(when, questions))
            if ends:
                usual(client, [wire.Next(0, b"", 0, [])])[0].result(60)
                os.kill(pid(client), signal.SIGSTOP)
            answers = usual(client, questions)
            self.asked.append((pid(client), list(questions)))
            if ends:
                os.kill(pid(client), signal.SIGKILL)
            return answers

        patch.setattr(GrammarProcess, "ask", ask)


def follows(*parsers: int) -> Callable[[wire.Question], bool]:
    return lambda what: isinstance(what, wire.Next) and what.parser in parsers


def test_what_ends_each_process_that_it_is_asked_of_is_refused_and_what_waits_behind_it_goes_on(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parser 2 ends the process, as a mask that needs more memory than there is would."""
    ending = Ending(monkeypatch, follows(2))
    told = list(Desk(process).follow([order(2, "a+", []), order(3, "b+", [])]))
    assert "cannot be followed" in told[0].fault and "make it simpler" in told[0].fault
    assert allowed(told[1])
    ended = [(number, what) for number, what in ending.asked if any(map(follows(2), what))]
    (first, together), (cell, alone) = ended
    assert len(together) == 2 and len(alone) == 1 and first != cell, "it was asked once more, where nobody else is"


def test_a_mask_under_way_that_another_s_grammar_ends_is_not_refused(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell who took the memory: each that was under way is asked alone, and answered."""
    ended: list[int] = []

    def once(what: wire.Question) -> bool:
        if follows(1)(what) and not ended:
            ended.append(1)
            return True
        return False

    desk = Desk(process)
    (reading,) = process.ask([wire.Read(ENDLESS)])
    Ending(monkeypatch, once)
    assert [len(allowed(told)) for told in desk.follow([order(1, "c+", []), order(2, "ab", [])])] == [1, 1]
    with pytest.raises(desks.Ended) as told:
        reading.result(60)
    assert told.value.suspect


def test_however_often_others_end_the_process_a_mask_that_waits_is_told(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ending(monkeypatch, follows(1, 2))
    told = list(Desk(process).follow([order(1, "a", []), order(2, "b", []), order(3, "c+", [])]))
    assert [bool(one.fault) for one in told] == [True, True, False]


def test_only_what_was_under_way_is_suspect(process: GrammarProcess) -> None:
    assert allowed(next(iter(Desk(process).follow([order(1, "c+", [])]))))
    os.kill(pid(process), signal.SIGSTOP)
    reads = [wire.Read(b"%d" % i) for i in range(4)]
    masks = [wire.Next(i, b"", 0, []) for i in range(3)]
    answers = process.ask([*reads, *masks])
    os.kill(pid(process), signal.SIGKILL)
    errors = [one.exception(60) for one in answers]
    assert [isinstance(error, desks.Ended) and error.suspect for error in errors] == [
        *(True, True, False, False),
        *(True, False, False),
    ]


def test_a_mask_that_keeps_the_interpreters_lock_for_ever_is_refused_alone(process: GrammarProcess) -> None:
    """The signal of the timer ends the process: nothing in Python handles it."""
    assert [allowed(told) for told in Desk(process).follow([order(1, "c+", [])])]
    os.kill(pid(process), signal.SIGSTOP)
    first, second, reading = process.ask([wire.Next(1, b"", 0, []), wire.Next(2, b"", 0, []), wire.Read(ENDLESS)])
    os.kill(pid(process), signal.SIGPROF)
    os.kill(pid(process), signal.SIGCONT)
    told = first.result(60)
    assert isinstance(told, wire.Told) and "one mask takes more than 20 s" in told.fault
    for one in (second, reading):
        error = one.exception(60)
        assert isinstance(error, desks.Ended) and not error.suspect


def limited(tmp_path: Path, **seconds: float) -> Callable[..., list[str]]:
    """The command of a grammar process with other limits."""
    lines = [f"process.{name} = {limit}" for name, limit in seconds.items()]
    program = "\n".join(["from stepwell.engine.grammar import process", *lines, "process.main()"])
    return lambda module: [sys.executable, "-c", program]


def test_a_grammar_that_is_read_for_ever_is_refused_and_the_others_go_on(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("stepwell.engine.grammar.client.command", limited(tmp_path, READ_SECONDS=0.2))
    (mask,) = process.ask([wire.Next(1, b"", 0, [])])
    assert mask.result(60) == wire.Lost()
    before = pid(process)
    assert "takes more than 0.2 s to read" in Desk(process).read(ENDLESS).fault
    assert [allowed(told) for told in Desk(process).follow([order(1, "c+", [])])]
    assert pid(process) != before


def test_a_mask_counts_the_time_of_its_own_thread_alone(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mask that waits takes no time, however long grammars are read beside it; one that computes is refused when its time is over."""
    program = (
        "import time\n"
        "from stepwell.engine.grammar import process, watch, wire\n"
        "process.MASK_SECONDS, watch._EVERY = 0.3, 0.05\n"
        "def next(self, asked):\n"
        "    began = time.thread_time()\n"
        "    while asked.parser and time.thread_time() < began + 60: time.sleep(0.0001)\n"
        "    time.sleep(0.8)\n"
        "    return wire.Lost()\n"
        "process.Follower.next = next\n"
        "process.signal.setitimer = lambda *given: None\n"
        "process.main()\n"
    )
    monkeypatch.setattr("stepwell.engine.grammar.client.command", lambda module: [sys.executable, "-c", program])
    reading, waits, computes = process.ask([wire.Read(ENDLESS), wire.Next(0, b"", 0, []), wire.Next(1, b"", 0, [])])
    assert waits.result(60) == wire.Lost()
    told = computes.result(60)
    assert isinstance(told, wire.Told) and "one mask takes more than 0.3 s" in told.fault
    error = reading.exception(60)
    assert isinstance(error, desks.Ended) and not error.suspect, "it is known who it was"


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
