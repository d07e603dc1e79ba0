"""What an engine does while nobody asks it for anything."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.moves import LiveState, Move, Tier
from tests.cache.builders import join, numbers
from tests.sched.rig import LOADS, Rig

PROMPT = numbers(42)


def full(host: int = 200, idle: bool = True) -> Rig:
    """An engine whose device is full of others' prompts, with PROMPT in host alone."""
    rig = Rig(40, host, clean=0.0, idle=idle)
    rig.ask("first", PROMPT)
    for seed in range(1, 6):
        rig.ask(f"{seed}", numbers(42, seed))
    return rig


def goes_down(move: Move) -> bool:
    return not isinstance(move.target, LiveState) and move.target.tier == Tier.HOST


def test_it_copies_down_and_comes_to_rest() -> None:
    rig = full()
    use = rig.directory.use(Tier.DEVICE)
    assert use.free + use.clean == use.total == 40
    assert not rig.loop.busy and not rig.mover.pending
    rig.drained()


@pytest.mark.parametrize("short", [0, 4, 16, 30])
def test_what_is_worth_no_copy_stands_in_nobodys_way(short: int) -> None:
    """Prompts too short for a rung are the least valuable of all, and come first; no copy of them could be resumed from."""
    rig = Rig(200, 200, grid=16, clean=0.0)
    for seed in range(short):
        rig.submit(f"short {seed}", numbers(15, 50 + seed), 1)
    for seed in range(3):
        rig.submit(f"{seed}", numbers(65, seed), 1)
    rig.run()
    assert not rig.loop.busy
    use = rig.directory.use(Tier.DEVICE)
    assert use.free + use.clean == use.total and rig.directory.use(Tier.HOST).cached == 51
    rig.drained()


@pytest.mark.parametrize("idle", [True, False])
def test_a_load_after_a_pause_waits_for_no_copy_down(idle: bool) -> None:
    """Without idle copies the same load waits: that is what they are for."""
    rig = full(idle=idle)
    rig.submit("again", join(PROMPT, numbers(6, 99)))
    rig.step()
    loads = [move for move in rig.mover.pending.values() if LOADS(move)]
    assert bool(loads) == idle
    assert bool(rig.loop.queues.waiting) != idle
    rig.run()
    rig.cold("again")
    assert rig.outcome("again").host >= 40
    rig.drained()


def test_it_stops_at_once_when_a_request_comes() -> None:
    rig = Rig(200, 400, clean=0.0)
    for seed in range(6):
        rig.submit(f"{seed}", numbers(60, seed))
    while rig.loop.serving:
        rig.step()
    rig.step()
    begun = {ticket for ticket, move in rig.mover.pending.items() if goes_down(move)}
    assert begun, "the first piece is under way"
    rig.submit("a", numbers(42, 77), 8)
    while not rig.ended("a"):
        rig.step()
        assert {ticket for ticket, move in rig.mover.pending.items() if goes_down(move)} <= begun
    rig.run()
    rig.cold("a")
    rig.drained()


def test_what_is_asked_for_while_it_is_copied_down_is_resumed_at_once() -> None:
    rig = Rig(200, 400, clean=0.0)
    rig.submit("first", PROMPT)
    while rig.loop.serving:
        rig.step()
    rig.step()
    assert rig.mover.pending
    rig.submit("again", join(PROMPT, numbers(6, 99)))
    rig.step()
    assert rig.outcome("again").device >= 40 and rig.mover.pending
    rig.run()
    rig.cold("first", "again")


def test_a_queue_is_never_idle() -> None:
    """While somebody waits or loads nothing begins that nobody needs."""
    rig = full()
    rig.drop(np.concatenate([numbers(42, 5)]), 0, tier=Tier.HOST)
    rig.submit("again", join(PROMPT, numbers(6, 99)))
    rig.step()
    assert rig.loop.queues.parked
    assert not [move for move in rig.mover.pending.values() if goes_down(move)]
    rig.run()
    rig.drained()
