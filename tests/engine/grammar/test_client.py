"""Whoever asks a grammar process is answered, whatever becomes of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from stepwell.engine.grammar.client import Ended, GrammarProcess, Unavailable
from stepwell.engine.grammar.wire import Read, Start

START = Start("nowhere", 8, (0,), 2, 0)


def test_a_process_that_cannot_be_started_is_told_to_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **more: Any) -> Any:
        raise BlockingIOError(11, "too many processes")

    monkeypatch.setattr("stepwell.engine.grammar.client.subprocess.Popen", refuse)
    process = GrammarProcess(START)
    (asked,) = process.ask([Read(b"x")])
    with pytest.raises(Unavailable, match="too many processes"):
        asked.result(10)
    process.close()


@pytest.mark.parametrize(
    "said", ["b'\\x04\\x00\\x00\\x00nope'", "b'\\xff\\xff\\xff\\xff'", "b'\\x03\\x00\\x00\\x00\\x92\\x07\\x90'"]
)
def test_a_process_that_says_what_is_no_answer_is_ended(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import sys, time; sys.stdout.buffer.write({said}); sys.stdout.flush(); time.sleep(600)"
    popen = subprocess.Popen
    monkeypatch.setattr(
        "stepwell.engine.grammar.client.subprocess.Popen",
        lambda command, **more: popen([sys.executable, "-c", program], **more),
    )
    process = GrammarProcess(START)
    (asked,) = process.ask([Read(b"x")])
    with pytest.raises(Ended):
        asked.result(30)
    process.close()
