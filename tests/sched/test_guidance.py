"""Answers that are held to a grammar join a step once it is known what may follow; nobody else waits for that."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from stepwell.base.geometry import Ints
from stepwell.sched.overdue import Deadlines
from stepwell.sched.request import SamplingParams
from tests.cache.builders import join, numbers
from tests.sched.rig import Rig

HELD = SamplingParams(6, grammar="any")


class Slow:
    """Knows what may follow an answer once `knows` says so."""

    def __init__(self, knows: Callable[[str, int], bool]) -> None:
        self._knows = knows
        self.begun: list[tuple[str, int]] = []
        self.known: dict[str, list[int]] = {}
        self.waits = 0

    def begin(self, request_id: str, params: SamplingParams, answer: Ints) -> None:
        self.begun.append((request_id, len(answer)))

    def ready(self, request_id: str, params: SamplingParams, answer: Ints) -> bool:
        assert params.grammar, "asked for those alone that are held to one"
        known = self._knows(request_id, len(answer))
        if known:
            self.known[request_id] = answer.tolist()
        return known

    def wait(self, seconds: float) -> bool:
        self.waits += 1
        return True


def turns(rig: Rig, name: str) -> list[int]:
    return [i for i, step in enumerate(rig.steps) if name in [work.request_id for work in step.works]]


def sampled_as_known(rig: Rig, slow: Slow) -> None:
    """Every token that is held to a grammar is drawn after the answer for which that was ready."""
    for step in rig.steps:
        for work in step.works:
            if work.sample is not None and work.sample.params.grammar:
                assert work.sample.index <= len(slow.known[work.request_id])


@pytest.mark.parametrize("ahead", [False, True])
def test_a_slow_grammar_delays_its_own_answer_alone(ahead: bool) -> None:
    asked = [0]

    def knows(name: str, length: int) -> bool:
        asked[0] += 1
        return asked[0] % 5 == 0

    slow = Slow(knows)
    rig = Rig(ahead=ahead, guidance=slow)
    rig.submit("plain", numbers(10), max_tokens=12)
    rig.submit("held", numbers(10, 1), params=HELD)
    rig.run()
    assert turns(rig, "plain") == list(range(12)), "in every step"
    assert len(turns(rig, "held")) == 6 and turns(rig, "held")[0] == 4
    sampled_as_known(rig, slow)
    rig.cold("plain", "held")
    rig.drained()


def test_what_may_follow_is_begun_as_soon_as_the_token_is_known() -> None:
    slow = Slow(lambda name, length: True)
    rig = Rig(guidance=slow)
    rig.submit("held", numbers(10), params=HELD)
    rig.run()
    assert slow.begun[:5] == [("held", length) for length in range(1, 6)]


def test_a_long_prompt_is_computed_up_to_its_last_part_meanwhile() -> None:
    slow = Slow(lambda name, length: slow.waits > 2)
    rig = Rig(budget=16, guidance=slow)
    rig.submit("held", numbers(60), params=HELD)
    for _ in range(6):
        rig.step()
    assert sum(step.tokens for step in rig.steps) == 48, "the last part draws"
    rig.run()
    rig.cold("held")


def test_an_idle_loop_waits_for_it_instead_of_turning() -> None:
    slow = Slow(lambda name, length: False)
    rig = Rig(guidance=slow)
    rig.submit("held", numbers(10), params=HELD)
    for _ in range(4):
        rig.step()
    assert slow.waits == 3 and not rig.steps, "the first turn had to tell of the admission"
    rig.loop.abort("held")
    rig.run()
    rig.drained()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("late", ["seconds", "a moment"])
def test_a_copy_that_is_overdue_ends_nobody_who_waits_for_a_grammar_alone(count: int, late: str) -> None:
    """A mask that takes long, or one that comes between two questions for it."""
    asked: Counter[tuple[str, int]] = Counter()

    def knows(name: str, length: int) -> bool:
        asked[name, length] += 1
        return asked[name, length] > (20 if late == "seconds" else 1)

    rig = Rig(guidance=Slow(knows))
    rig.loop.config, rig.loop._deadlines = replace(rig.loop.config, load_timeout=5.0), Deadlines(5.0)
    rig.submit("base", numbers(20, 500))
    for _ in range(12):
        rig.step()  # its copies to host are not reported
    assert rig.directory.overdue and not rig.directory.in_flight
    names = [f"held{i}" for i in range(count)]
    for i, name in enumerate(names):
        rig.submit(name, numbers(20, i), params=HELD)
    for _ in range(20):
        rig.step()
    rig.run()
    assert not rig.loop.stats().preemptions
    rig.cold(*names)


@pytest.mark.parametrize("seed", range(20))
def test_random_waits_in_a_small_pool_change_no_answer(seed: int) -> None:
    """With preemptions, prompts that share, and steps in flight."""
    chance = random.Random(seed)
    slow = Slow(lambda name, length: chance.random() < 0.4)
    rig = Rig(pages=40, budget=24, seqs=3, ahead=bool(seed % 2), guidance=slow)
    for i in range(6):
        prompt = join(numbers(chance.choice([8, 24])), numbers(chance.randint(1, 30), i))
        grammar = "any" if i % 2 else ""
        rig.submit(f"r{i}", prompt, params=SamplingParams(chance.randint(1, 20), grammar=grammar))
    rig.run(5000)
    sampled_as_known(rig, slow)
    rig.cold(*rig.requests)
    rig.drained()
