"""Where the time of a start goes."""

from __future__ import annotations

import logging

import pytest

from stepwell.base.clock import VirtualClock
from stepwell.engine.phases import Phases


def test_each_second_counts_for_the_innermost_phase(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    told: list[str] = []
    phases = Phases(clock, told.append)
    clock.advance(5.0)  # outside of any
    with caplog.at_level(logging.INFO), phases("weights"):
        clock.advance(1.0)
        with phases("kernels"):
            clock.advance(4.0)
        clock.advance(2.0)
    assert phases.taken() == (("weights", 3.0), ("kernels", 4.0))
    assert [record.getMessage() for record in caplog.records] == ["weights …", "kernels …"]
    assert told == ["weights", "kernels"]


def test_a_phase_may_come_again_and_counts_also_where_it_fails() -> None:
    clock = VirtualClock()
    phases = Phases(clock, lambda name: None)
    for seconds in (1.0, 2.0):
        with pytest.raises(ValueError, match="broken"), phases("memory"):
            clock.advance(seconds)
            raise ValueError("broken")
        clock.advance(10.0)
    assert phases.taken() == (("memory", 3.0),)
