"""Drafts are made as long as they gain: by the tokens a second that steps with and without them make, for as many answers."""

from __future__ import annotations

import logging

import pytest

from stepwell.sched.drafts import EVERY, TRIED, Always, DecodeTime, Measured


def served(
    gain: Measured, steps: int, rate: float, step_s: float, *, decodes: int = 1, longer: float = 2.0
) -> list[bool]:
    """So many steps; with drafts one makes `rate` tokens and takes `longer` times as long. Whether each drafted."""
    now, told = 0.0, []
    for _ in range(steps):
        drafting = gain.wants(decodes)
        now += step_s * (longer if drafting else 1.0)
        gain.saw(DecodeTime(decodes, drafting, round(decodes * (rate if drafting else 1.0)), now))
        told.append(drafting)
    return told


@pytest.mark.parametrize("decodes", [1, 64])
def test_drafts_that_gain_stay_on_but_for_trials(decodes: int) -> None:
    told = served(Measured(), 5 * EVERY, 3.0, 0.01, decodes=decodes)
    assert told[0] and 0.95 < sum(told) / len(told) < 1.0


@pytest.mark.parametrize("decodes", [1, 64])
def test_drafts_that_cost_are_off_but_for_trials_and_soon(decodes: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        told = served(Measured(), 5 * EVERY, 1.0, 0.01, decodes=decodes)
    assert not any(told[40:EVERY]) and sum(told[40:]) <= 4 * TRIED
    assert [r.getMessage() for r in caplog.records] == [
        "drafts are turned off for now: 50.0 tokens/s an answer with them, 100.0 without"
    ]


def test_they_come_back_once_they_gain() -> None:
    gain = Measured()
    served(gain, EVERY, 1.0, 0.01)
    told = served(gain, 8 * EVERY, 3.0, 0.01)
    assert not told[0] and sum(told[-EVERY:]) > 0.9 * EVERY


def test_few_answers_may_draft_while_many_do_not() -> None:
    gain = Measured()
    served(gain, EVERY, 3.0, 0.01)
    served(gain, EVERY, 1.2, 0.01, decodes=32)
    assert gain.wants(1) and not gain.wants(40) and gain.wants(5), "of 5 nothing is known yet"


def test_one_slow_step_and_steps_with_prompts_turn_nothing() -> None:
    gain, now = Measured(), 0.0
    for i in range(3 * EVERY):
        drafting = gain.wants(2)
        now += 100.0 if i % 90 == 0 else 0.02 if drafting else 0.01
        gain.saw(None if i % 90 == 0 else DecodeTime(2, drafting, 6 if drafting else 2, now))
    assert gain.wants(2)


def test_a_clock_that_stands_still_turns_nothing() -> None:
    assert all(served(Measured(), 100, 1.0, 0.0)[:20]) and Always().wants(3)
    gain = Measured()
    served(gain, 2 * EVERY, 1.0, 0.0)
    assert gain.wants(1)
