"""The work of a decode step grows with those who run, by very little each, and looks for nobody in the list of them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NoReturn

from stepwell.base.clock import VirtualClock
from stepwell.cache.config import CacheConfig
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Running
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.step import Done, Step, StepResult
from stepwell.testing.faults import InstantMover
from stepwell.testing.telltale import geometry
from tests.cache.builders import numbers

BLOCK = 16


class Constant:
    """A runner that computes nothing and draws the same token always."""

    def launch(self, step: Step) -> Done:
        return Done(StepResult(((7,),) * len(step)))


class Searched(list[Running]):
    """Those who run, in a list that is not to be searched."""

    def __contains__(self, _: object) -> NoReturn:
        raise AssertionError("O(running) for one of them")

    def index(self, *_: Any) -> NoReturn:
        raise AssertionError("O(running) for one of them")


def decoding(seqs: int) -> EngineLoop:
    """So many answers side by side, which neither end nor have company."""
    pages = seqs * 16
    cache = CacheConfig(geometry(BLOCK, 4 * BLOCK, 2), device_pages=pages)
    loop = EngineLoop(cache, SchedConfig(seqs, 4 * seqs + 4 * BLOCK), Constant(), InstantMover(), VirtualClock())
    for i in range(seqs):
        loop.submit(Request(f"{i}", numbers(33 + i % BLOCK, i), SamplingParams(128, ignore_eos=True)))
    while len(loop.queues.running) < seqs or any(running.remaining > 1 for running in loop.queues.running):
        loop.step()
    loop.step()
    return loop


def calls(loop: EngineLoop) -> int:
    """Python calls of as many steps as a block has tokens."""
    count = 0

    def saw(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "/stepwell/" in frame.f_code.co_filename

    sys.setprofile(saw)
    try:
        for _ in range(BLOCK):
            loop.step()
    finally:
        sys.setprofile(None)
    return count


def test_nobody_is_looked_for_among_those_who_run() -> None:
    loop = decoding(32)
    loop.queues.running = Searched(loop.queues.running)
    for _ in range(2 * BLOCK):
        loop.step()
    assert len(loop.queues.running) == 32


def test_a_step_of_twice_as_many_takes_at_most_twice_the_calls() -> None:
    few, many = calls(decoding(32)), calls(decoding(64))
    assert many <= 2 * few
    assert (many - few) / (32 * BLOCK) < 6, "calls for one more answer and step, a block's share of publishing included"
