"""A plain scheduler for peers' caches: first come, first served, continuous batching, prompts in pieces.

Every step computes one token for each answer under way, then pieces of prompts in the order of their arrival, up to the token
budget. A request whose load is under way waits aside. The first that finds no room holds up those behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

import numpy as np

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import CapacityError, StepwellError
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.replay.cost import CostModel
from stepwell.replay.machine import MachineSizes, passes
from stepwell.replay.peers.job import Job, Keys, PeerCache, Start
from stepwell.replay.runner import ANSWER_TOKEN, Links
from stepwell.sched.request import Admitted, Event, Finished, Request, Tokens


@dataclass(frozen=True, slots=True)
class PeerStats:
    """States left by requests, and those for which there was no room."""

    rungs_left: int
    rungs_skipped: int


class PeerLoop:
    """One engine with a peer's cache. `failure_rate`: of each leg of a load; the draws are those of `seed`."""

    def __init__(
        self,
        cache: PeerCache,
        sizes: MachineSizes,
        costs: CostModel,
        links: Links,
        clock: VirtualClock,
        failure_rate: float,
        seed: int,
    ) -> None:
        self.steps = 0
        self.cache = cache
        self._sizes = sizes
        self._costs = costs
        self._links = links
        self._clock = clock
        self._failure_rate = failure_rate
        self._dice = Random(seed)
        self._keys = Keys(cache.page)
        self._waiting: deque[Job] = deque()
        self._loading: list[tuple[float, int, Job, Start]] = []
        self._loads = 0
        self._running: list[Job] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._loading or self._running)

    def stats(self) -> PeerStats:
        return PeerStats(self.cache.left, self.cache.skipped)

    def submit(self, request: Request) -> None:
        """Raises CapacityError where it could never run."""
        answer = request.params.max_tokens or 1
        tokens = np.concatenate((request.prompt, np.full(answer, ANSWER_TOKEN, np.int32)))
        job = Job(request.id, self._keys.of(tokens), len(request.prompt), len(tokens))
        if not self.cache.fits(job):
            raise CapacityError(
                f"{job.total:,} tokens of prompt and answer do not fit the device: raise --device-tokens",
                job.total,
                self._sizes.device_tokens,
            )
        self._waiting.append(job)

    def step(self, most: int) -> Sequence[Event]:
        """Land loads, admit, compute one pass; of decodes alone up to `most` at once."""
        events: list[Event] = []
        self._land(events)
        self._admit(events)
        decodes = [job for job in self._running if job.decodes]
        pieces = self._pieces(len(decodes))
        if not decodes and not pieces:
            self._wait()
            return events
        context = sum(job.computed for job in decodes)
        repeat = 1 if pieces else self._repeat(decodes, context, most)
        prefills = [(job.computed, end - job.computed) for job, end in pieces]
        # The context of the middle pass: each pass adds a token to each answer.
        middle = context + len(decodes) * (1 + repeat) // 2
        self._clock.advance(repeat * self._costs.pass_seconds(prefills, len(decodes), middle))
        self.steps += repeat
        for job, end in pieces:
            job.computed = end
            self.cache.computed(job)
            if end == job.prompt:
                self._answer(job, 1, events)
        for job in decodes:
            job.computed += repeat
            self.cache.computed(job)
            self._answer(job, repeat, events)
        return events

    def passes_until(self, when: float) -> int:
        """Decode passes of whoever runs now that end by `when`; at least 1."""
        context = sum(job.computed for job in self._running)
        return passes(self._costs, len(self._running), context, when - self._clock.now())

    def _land(self, events: list[Event]) -> None:
        while self._loading and self._loading[0][0] <= self._clock.now():
            _, _, job, start = heappop(self._loading)
            failed = self._failed_leg(start)
            if failed is not None:
                start = self.cache.retreat(job, start, failed)
            self._begin(job, start, events)

    def _failed_leg(self, start: Start) -> Reason | None:
        assert start.load is not None, "only loads land"
        if start.load.missing is not None:
            return start.load.missing
        legs = ((start.load.kv_bytes, Reason.LOAD_FAILED_KV), (start.load.image_bytes, Reason.LOAD_FAILED_STATE))
        return next((reason for size, reason in legs if size and self._dice.random() < self._failure_rate), None)

    def _admit(self, events: list[Event]) -> None:
        while self._waiting and len(self._running) + len(self._loading) < self._sizes.max_num_seqs:
            job = self._waiting[0]
            start = self.cache.admit(job)
            if start is None:
                return
            self._waiting.popleft()
            if start.load is None:
                self._begin(job, start, events)
                continue
            size = start.load.kv_bytes + start.load.image_bytes
            ends = self._links.send((Tier.HOST, Tier.DEVICE), size, images=start.load.image_bytes > 0)
            heappush(self._loading, (ends, self._loads, job, start))
            self._loads += 1

    def _begin(self, job: Job, start: Start, events: list[Event]) -> None:
        job.boundary = job.computed = start.boundary
        self.cache.computed(job)
        self._running.append(job)
        events.append(Admitted(job.id, start.outcome(job)))

    def _pieces(self, decodes: int) -> list[tuple[Job, int]]:
        """Prompts to compute on, and up to where."""
        budget, pieces = self._sizes.max_num_batched_tokens - decodes, []
        for job in self._running:
            if job.decodes or budget <= 0:
                continue
            end = min(self.cache.chunk_end(job, budget), job.prompt)
            if end > job.computed:
                budget -= end - job.computed
                pieces.append((job, end))
        return pieces

    def _repeat(self, decodes: Sequence[Job], context: int, most: int) -> int:
        """Passes until an answer ends or a load lands."""
        most = min(most, min(job.total - job.prompt - job.sampled for job in decodes))
        if self._loading:
            most = min(most, passes(self._costs, len(decodes), context, self._loading[0][0] - self._clock.now()))
        return max(1, most)

    def _answer(self, job: Job, tokens: int, events: list[Event]) -> None:
        job.sampled += tokens
        events.append(Tokens(job.id, (ANSWER_TOKEN,) * tokens))
        if job.prompt + job.sampled >= job.total:
            self._running.remove(job)
            self.cache.finish(job)
            events.append(Finished(job.id, "length"))

    def _wait(self) -> None:
        if not self._loading:
            raise StepwellError("nothing runs, and the oldest request finds no room: raise --device-tokens")
        self._clock.advance_to(self._loading[0][0])


class PeerMachine:
    """A peer's engine that lets virtual time pass. `clock` is its own and starts at 0."""

    __slots__ = ("clock", "links", "loop")

    def __init__(self, loop: PeerLoop, links: Links, clock: VirtualClock) -> None:
        self.loop = loop
        self.links = links
        self.clock = clock

    @property
    def steps(self) -> int:
        """Passes computed."""
        return self.loop.steps

    def passes_until(self, when: float) -> int:
        return self.loop.passes_until(when)
