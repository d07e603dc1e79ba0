"""Many decode passes as one step, where nothing can happen between them: a short cut of the simulator's own.

A leap of k passes leaves queues, directory and counters exactly as k turns of the loop do (`tests/replay/test_leap.py` plays both). It is
taken only where no request arrives, ends, or waits for a copy meanwhile, and where k tokens for each answer fit without preempting.
"""

from __future__ import annotations

from typing import Protocol

from stepwell.base.clock import Clock
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.directory import Directory
from stepwell.sched.build import grow, share_of
from stepwell.sched.compose import Built, compose
from stepwell.sched.config import SchedConfig
from stepwell.sched.finish import has_plenty
from stepwell.sched.job import Running
from stepwell.sched.loop import IDLE_WAIT, EngineLoop
from stepwell.sched.queues import Queues
from stepwell.sched.request import Event
from stepwell.sched.step import Mover, Runner


class LeapingRunner(Runner, Protocol):
    """`passes`: the next step that it is given stands for so many; it draws a token in each, for every work."""

    passes: int


class LeapingLoop(EngineLoop):
    """The engine loop, which takes several decode passes in one turn if it may."""

    def __init__(
        self, cache: CacheConfig, config: SchedConfig, runner: LeapingRunner, mover: Mover, clock: Clock, costs: Costs
    ) -> None:
        super().__init__(cache, config, runner, mover, clock, costs)
        self._leaper = runner
        self._most = 1

    def step(self, most: int = 1, *, wait: float = IDLE_WAIT) -> list[Event]:
        """One turn, of at most so many decode passes; of one where steps are built ahead, since a leap ends before the next is built."""
        self._most = 1 if self.config.async_scheduling else most
        return super().step(wait=wait)

    def _build(self) -> Built | None:
        passes = passes_at_once(self.queues, self.directory, self.config, self._most) if self._most > 1 else 1
        if passes == 1:
            return super()._build()
        decodes = self.queues.running
        grown = [grow(self.directory, running, running.launched + passes) for running in decodes]
        assert all(grown), "there was room for all of them"
        shares = [share_of(self.queues, self.directory, self.config, r, r.launched + passes) for r in decodes]
        built = compose(self.queues, self.config, shares)
        self._leaper.passes = passes
        self._steps += passes - 1
        self._computed += (passes - 1) * len(decodes)
        return built


def passes_at_once(queues: Queues, directory: Directory, config: SchedConfig, most: int) -> int:
    """Decode passes to take at once: up to the first answer that must end, as many as fit without preempting; at least 1."""
    decodes = queues.running
    copies_matter = queues.parked or queues.moves or (queues.waiting and directory.in_flight)
    if not decodes or copies_matter or any(running.remaining > 1 for running in decodes):
        return 1
    waypoints = has_plenty(directory)
    passes = min(most, min(_passes(running, config, waypoints) for running in decodes))
    room = directory.room()
    spendable = room.instant - room.reserved
    geometry = directory.config.geometry
    while passes > 1:
        needed = sum(max(0, geometry.pages_for(r.launched + passes) - len(r.table)) for r in decodes)
        if needed + len(decodes) * geometry.image_pages <= spendable:
            break
        passes //= 2
    return max(1, passes)


def _passes(running: Running, config: SchedConfig, waypoints: bool) -> int:
    """Decode passes until the answer must end, or leaves a rung that stays, where there are `waypoints`. One that a token may end goes to
    its next rolling rung, and leaves it, at most."""
    job, every = running.job, config.decode_rung_tokens
    left = job.limit - job.tokens.count
    if waypoints:
        left = min(left, config.next_waypoint(running.launched) - running.launched)
    may_stop = job.request.params.stop_token_ids or (config.eos and not job.request.params.ignore_eos)
    return min(left, every - running.launched % every) if may_stop else left
