"""Taking k decode passes at once is the same as k turns of the loop, on the tell-tale, to the last byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.cache.config import Costs
from stepwell.cache.tree import RungKind
from stepwell.replay.leap import LeapingLoop
from stepwell.sched.request import Event, Finished
from stepwell.sched.step import Carry, Done, Runner, Step, StepResult, Work
from stepwell.testing.telltale import answer
from tests.cache.builders import content, numbers
from tests.sched.rig import VOCAB, Rig


class Passes:
    """A runner that computes a leap pass by pass."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.passes = 1
        self.launches = 0

    def launch(self, step: Step) -> Done:
        passes, self.passes = self.passes, 1
        self.launches += 1
        drawn: list[tuple[int, ...]] = [()] * len(step.works)
        result = StepResult(())
        for k in range(passes):
            works = [_after(work, k, said) for work, said in zip(step.works, drawn, strict=True)]
            result = self.inner.launch(Step(tuple(works))).result()
            drawn = [old + new for old, new in zip(drawn, result.sampled, strict=True)]
        return Done(replace(result, sampled=tuple(drawn)))


def _after(work: Work, k: int, said: tuple[int, ...]) -> Work:
    """The pass of `work` that follows on k others, which have said this."""
    start = work.start + k
    tokens = np.array(said[-1:], np.int32) if k else work.tokens
    cuts = tuple(cut for cut in work.cuts if start < cut.position <= start + len(tokens))
    return replace(work, start=start, tokens=tokens, cuts=cuts, state=Carry() if k else work.state)


class _Turns(LeapingLoop):
    """Takes up to `most` passes at once, whatever it is asked for."""

    most = 1

    def step(self, most: int = 1, *, wait: float = 0.0) -> list[Event]:
        return super().step(self.most, wait=wait)


def leaping(most: int, rig: Rig) -> Rig:
    loop = _Turns(rig.directory.config, rig.loop.config, Passes(rig.runner), rig.mover, rig.clock, Costs())
    loop.most = most
    rig.loop = loop
    return rig


def same(one: Rig, other: Rig) -> None:
    assert content(one.directory) == content(other.directory)
    assert [e for e in one.events if isinstance(e, Finished)] == [e for e in other.events if isinstance(e, Finished)]
    for name in one.requests:
        assert one.answer(name) == other.answer(name)
        assert one.outcome(name) == other.outcome(name)


class TestLeap:
    """Taking k decode passes at once is the same as k turns, where nothing arrives."""

    def rig(
        self,
        most: int,
        pages: int,
        host: int,
        eos: tuple[int, ...],
        answers: tuple[int, ...],
        every: int = 8,
        waypoint: int = 1024,
    ) -> Rig:
        rig = leaping(most, Rig(pages, host, eos=eos, seqs=4, budget=200, rolling=every, waypoint=waypoint))
        for number, count in enumerate(answers):
            rig.submit(f"{number}", numbers(24 + 5 * number, number), count)
        rig.clock = rig.loop._clock = Still()  # type: ignore[assignment]
        rig.run()
        rig.drained()
        return rig

    @pytest.mark.parametrize("most", [2, 3, 7, 8, 16, 64])
    @pytest.mark.parametrize("answers", [(40,), (40, 40), (9, 33, 17)])
    def test_with_room(self, most: int, answers: tuple[int, ...]) -> None:
        same(self.rig(1, 256, 256, (), answers), self.rig(most, 256, 256, (), answers))

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("every", [4, 12, 20, 48])
    @pytest.mark.parametrize("most", [7, 64])
    def test_with_rungs_that_stay(self, most: int, every: int) -> None:
        one, other = (self.rig(k, 256, 256, (), (150, 97), every, 32) for k in (1, most))
        assert {node.rung.kind for node in one.directory.tree.nodes() if node.rung} >= {RungKind.WAYPOINT}
        same(one, other)

    @pytest.mark.parametrize("most", [2, 8, 64])
    def test_with_an_answer_that_stops_early(self, most: int) -> None:
        eos = answer(numbers(24), 12, VOCAB)[10:11]
        one, other = (self.rig(k, 256, 256, tuple(eos), (40,)) for k in (1, most))
        assert one.end("0").reason == "stop"
        same(one, other)

    @pytest.mark.parametrize("most", [2, 8, 64])
    def test_it_never_preempts_by_itself(self, most: int) -> None:
        one, other = (self.rig(k, 46, 0, (), (20, 20, 20)) for k in (1, most))
        assert other.loop.stats().preemptions <= one.loop.stats().preemptions
        other.cold("0", "1", "2")

    @pytest.mark.parametrize("pages", [16, 22, 28, 40])
    @pytest.mark.parametrize("host", [0, 30])
    def test_where_room_is_short_answers_and_starts_are_still_the_same(self, pages: int, host: int) -> None:
        one, *others = (self.rig(k, pages, host, (), (30, 20)) for k in (1, 3, 32))
        for other in others:
            assert one.loop.stats().preemptions == other.loop.stats().preemptions
            for name in one.requests:
                assert one.answer(name) == other.answer(name) and one.outcome(name) == other.outcome(name)

    def test_steps_are_saved(self) -> None:
        one, other = (self.rig(k, 256, 256, (), (64,)) for k in (1, 16))
        assert one.loop.stats().steps == other.loop.stats().steps == 64
        launches = [passes.launches for rig in (one, other) if isinstance(passes := rig.loop._runner, Passes)]
        assert launches[1] < launches[0] / 8


class Still:
    """A clock that stands, so that two runs stamp the same times."""

    def now(self) -> float:
        return 0.0

    def advance(self, seconds: float) -> None:
        return
