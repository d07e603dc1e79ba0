"""vLLM (0.33, `mamba_cache_mode=align`): attention KV and states in blocks of one size, states on block boundaries alone.

One block holds the KV of so many tokens that it is as large as a third of a state (a model with three recurrent layers to one of
attention makes three groups of state blocks); 2,048 tokens where a state is as large as the KV of 6,100. One free list, least
recently used first, serves both. A prompt keeps the state at its last block boundary, and at the end of the KV that it found where
that reached beyond the state: the junction. Decoding keeps KV and no state. Below the device the offloading connector writes every
new block through to host, least recently used first there too; it reads from the hit on what host holds without a gap.

Left out: `--prefix-match-unit` finer than a block, retention intervals, speculation (which keeps a state at each boundary),
preemption (the blocks of the answer are taken at admission), the wait for a block that another request is writing just now. A load
that fails starts over at token 0; the engine's default is to fail the request.
"""

from __future__ import annotations

from stepwell.base.units import ceil_div, ceil_to
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Loss, Reason
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.held import Held, hold
from stepwell.replay.peers.job import Job, Load, Past, Start, state_key
from stepwell.replay.peers.pool import Pool
from stepwell.replay.runner import Links

GROUPS = 3
"""Blocks of one state: recurrent layers to one attention layer."""
LIVE_STATES = 2
"""States that a running request holds: of the step before, and of this one."""
_BLOCK_MULTIPLE = 16


class VllmCache:
    """See the module. Units of both pools are blocks."""

    __slots__ = ("_block_bytes", "_device", "_held", "_host", "_junction", "_links", "_past", "left", "page", "skipped")

    def __init__(self, sizes: MachineSizes, kv_bytes_per_token: int, links: Links) -> None:
        self.page = ceil_to(ceil_div(sizes.rung_tokens, GROUPS), _BLOCK_MULTIPLE)
        self._block_bytes = self.page * kv_bytes_per_token
        self._device = Pool(sizes.device_tokens // self.page)
        self._host = Pool(sizes.host_tokens // self.page)
        self._links = links
        self._past = Past()
        self._held: dict[str, Held] = {}
        self._junction: dict[str, int] = {}
        self.left = self.skipped = 0

    def fits(self, job: Job) -> bool:
        return ceil_div(job.total, self.page) + (LIVE_STATES + 1) * GROUPS <= self._device.capacity

    def admit(self, job: Job) -> Start | None:
        keys, most = job.keys, job.usable // self.page
        reach = self._device.leading(keys, 0, most)
        hit = self._device.deepest_state(keys, 0, reach)
        stored = self._host.leading(keys, hit, most)
        boundary = self._host.deepest_state(keys, hit, stored)
        spare = state_key(keys[hit - 1]) if hit else None
        held = hold(self._device, job, self.page, hit, LIVE_STATES * GROUPS, spare)
        if held is None:
            return None
        self._held[job.id] = held
        self._junction[job.id] = reach if reach > hit else 0
        self._host.touch(keys[:stored])
        load = self._load(boundary - hit) if boundary > hit else None
        if load is not None:
            self._host.touch((state_key(keys[boundary - 1]),))
        tier = Tier.HOST if load else Tier.DEVICE if hit else None
        return self._start(job, boundary, hit, boundary - hit, tier, max(reach, stored), load)

    def _load(self, blocks: int) -> Load:
        return Load(blocks * self._block_bytes, GROUPS * self._block_bytes)

    def _start(
        self, job: Job, boundary: int, hit: int, host: int, tier: Tier | None, reach: int, load: Load | None
    ) -> Start:
        page = self.page
        lost = self._past.lost(job, page, boundary * page, reach * page, None, 0)
        reason = Reason.TOO_SHORT if job.usable < page else Reason.NO_RUNG if reach > boundary else Reason.COMPLETE
        return Start(boundary * page, hit * page, host * page, tier, reason, tuple(lost), load)

    def retreat(self, job: Job, start: Start, reason: Reason) -> Start:
        lost = self._past.lost(job, self.page, 0, 0, Loss.FAILED_LEG, start.boundary)
        return Start(0, start.hit, 0, None, reason, tuple(lost))

    def chunk_end(self, job: Job, most: int) -> int:
        end = job.computed + most
        stops = (self._last(job), self._junction[job.id] * self.page)
        first = min((stop for stop in stops if stop > job.computed), default=job.prompt)
        return first if first <= end else max(job.computed, end // self.page * self.page)

    def _last(self, job: Job) -> int:
        """The last block boundary below the prompt's end."""
        return job.usable // self.page * self.page

    def computed(self, job: Job) -> None:
        written = 0
        for key in self._held[job.id].publish(self._device, self._past, job, self.page):
            written += self._store(key, 1)
        images = 0
        # The state that a request began with is in a block of its own, too: one that was loaded can be found here from now on.
        if job.computed and job.computed in (job.boundary, self._last(job), self._junction[job.id] * self.page):
            key = job.keys[job.computed // self.page - 1]
            kept = self._device.add(state_key(key), GROUPS)
            if job.computed > job.boundary:
                self.left += kept
                self.skipped += not kept
            self._past.note_state(key)
            images = self._store(state_key(key), GROUPS) if kept else 0
        if written or images:
            way = Tier.DEVICE, Tier.HOST
            self._links.send(way, (written + images) * self._block_bytes, images=images > 0)

    def _store(self, key: int, blocks: int) -> int:
        """Blocks that have to be copied to host for this entry to be there."""
        if key in self._host:
            self._host.touch((key,))
            return 0
        return blocks if self._host.add(key, blocks) else 0

    def finish(self, job: Job) -> None:
        self._held.pop(job.id).release(self._device)
        del self._junction[job.id]

    def check(self) -> None:
        """Raise AssertionError unless every block is accounted for."""
        self._device.check(sum(held.private for held in self._held.values()))
        self._host.check(0)
