"""How far the weights are: a line now and then, a bar on a terminal."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

pytest.importorskip("torch")

from stepwell.base.clock import VirtualClock
from stepwell.engine.worker.progress import reading_progress


def test_a_log_hears_of_it_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    with caplog.at_level(logging.INFO), reading_progress(clock, Console(file=io.StringIO())) as told:
        for second in range(12):
            clock.advance(1.0)
            told(second * 2**30, 16 * 2**30)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["reading weights: 25 % of 16.0 GiB, 819.2 MiB/s", "reading weights: 56 % of 16.0 GiB, 921.6 MiB/s"]


def test_what_takes_less_than_that_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), reading_progress(VirtualClock(), Console(file=io.StringIO())) as told:
        told(5, 10)
        told(10, 10)
    assert not caplog.records


def test_a_terminal_has_a_bar() -> None:
    screen = io.StringIO()
    with reading_progress(VirtualClock(), Console(file=screen, force_terminal=True, width=100)) as told:
        told(2**30, 2**31)
        told(2**31, 2**31)
    assert "reading weights" in screen.getvalue()
