"""What a server tells of its work."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell.base.clock import VirtualClock
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.engine.process.messages import Stats
from stepwell.server.observe.journal import Ended, summary, tell
from stepwell.server.observe.phases import Course
from stepwell.server.observe.recent import Recent

LOST = ((Loss.NEW, 50), (Loss.EVICTED_RUNG, 14), (Loss.NO_ROOM, 0))


def outcome(**changed: Any) -> AdmissionOutcome:
    found = {"prompt": 1364, "device": 1024, "host": 256, "disk": 20, "recomputed": 64, "boundary": 1300, "hit": 1024}
    return AdmissionOutcome(
        "r-0", **{**found, "state_tier": Tier.HOST, "reason": Reason.COMPLETE, "lost": LOST, **changed}
    )


def told(ended: Ended, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    with caplog.at_level(logging.INFO, "stepwell.server"):
        tell(ended)
    (record,) = caplog.records
    return record


def test_a_sequence_is_told_in_one_line_with_where_its_prompt_came_from(caplog: pytest.LogCaptureFixture) -> None:
    course = Course(10.0, admitted=10.1, first=10.25)
    record = told(Ended("r-0", 1364, outcome(), course, 12.25, 41, "stop"), caplog)
    assert record.getMessage() == (
        "1,364 prompt tokens: 1,024 from device + 256 from host + 20 from disk + 64 computed (50 new, 14 whose state was evicted);"
        " first token after 0.25 s; 41 tokens at 20.0/s; stop"
    )
    assert vars(record)["sequence"] == "r-0"
    assert vars(record)["call"] == {
        "prompt": 1364,
        "device": 1024,
        "host": 256,
        "disk": 20,
        "computed": 64,
        "lost_to": {"new": 50, "evicted_rung": 14},
        "reason": "complete",
        "first_token_s": 0.25,
        "answer": 41,
        "tokens_s": 20.0,
        "finish": "stop",
    }


@pytest.mark.parametrize(("tokens", "first"), [(0, None), (1, 10.5)])
def test_no_speed_is_made_up(tokens: int, first: float | None, caplog: pytest.LogCaptureFixture) -> None:
    record = told(Ended("r-0", 7, None, Course(10.0, first=first), 10.5, tokens, "abort"), caplog)
    assert record.getMessage().startswith("7 prompt tokens: never admitted; ")
    assert record.getMessage().endswith(f"{tokens} token{'' if tokens == 1 else 's'}; abort")
    assert vars(record)["call"]["tokens_s"] is None


def test_every_loss_has_its_words(caplog: pytest.LogCaptureFixture) -> None:
    lost = tuple((loss, 1) for loss in Loss)
    assert told(Ended("r-0", 9, outcome(lost=lost), Course(0.0), 1.0, 0, "abort"), caplog)


def test_a_summary_counts_the_last_seconds_alone_and_none_is_made_of_idle_ones() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    assert summary(recent.last(10.0), 10.0) is None
    recent.admitted(outcome(device=10**6))
    recent.slice().generated += 10**6
    clock.advance(20.0)
    assert summary(recent.last(10.0), 10.0) is None
    for seconds in (0.2, 0.4):
        recent.admitted(outcome())
        recent.slice().generated += 400
        recent.slice().first.add(seconds)
        recent.measured(Stats({"running": 3, "waiting": 2}, {"device": {"free": 1, "cached": 3}}))
        clock.advance(3.0)
    line = summary(recent.last(10.0), 10.0)
    assert line is not None
    assert line.startswith(
        "3 running, 2 waiting; prompts 273 tokens/s, 95% of them cached; answers 80.0 tokens/s; first token p50 0.2"
    )
    assert line.endswith("; used: device 75%")
