"""ATOM with LMCache below it, before and after its loads learnt to start off the chunk grid.

Device: one pool of blocks (`--block-size`) for KV and states, least recently used first. Prompts leave a state every 8,192 tokens and
at their last block boundary. Host: chunks of 256 tokens and states in one LRU of its own, which device hits do not refresh; a lookup
refreshes the chunks that it finds. Only whole chunks of prompts are stored, so a state is of use there only if the chunk that covers
it is stored too. The engine's list of the states in host is not told of evictions: such a state is found, asked for, and the load fails.

A load takes the deepest such state above the hit, and pays for whole chunks. **Before**: only if the hit stands on the chunk grid
(`off_chunk_grid`); a leg that fails costs all, the prompt is computed from token 0. **After**: the split between shared and private
pages moves down to the chunk grid instead, where there is room for the private ones (`partial_chunk_no_room`); a leg that fails
resumes at the hit.

Left out: ranks that evict apart (their failures are what `--peer-failure-rate` is for), speculation, lookups that wait, preemption
(the blocks of the answer are taken at admission). Loads of fewer than 8,192 tokens are not made, as in the recipe of its review.
"""

from __future__ import annotations

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_div, ceil_to
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Loss, Reason
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.held import Held, hold
from stepwell.replay.peers.job import Job, Load, Past, Start, state_key
from stepwell.replay.peers.pool import Pool
from stepwell.replay.runner import Links

CHUNK = 256
INTERVAL = 8192
MIN_LOAD = 8192


class AtomCache:
    """See the module. Units of both pools are blocks; `unaligned`: the mechanism after the change."""

    __slots__ = (
        "_chunk", "_device", "_held", "_host", "_image", "_links", "_listed", "_page_bytes", "_past", "_unaligned",
        "left", "page", "skipped",
    )  # fmt: skip

    def __init__(self, sizes: MachineSizes, kv_bytes_per_token: int, links: Links, unaligned: bool) -> None:
        if sizes.block < 1 or CHUNK % sizes.block:
            raise ConfigError(
                f"--block-size must divide {CHUNK} for --policy atom-before and atom-after, not {sizes.block}"
            )
        self.page = sizes.block
        self._chunk = CHUNK // self.page
        self._image = ceil_div(sizes.rung_tokens, self.page)
        self._page_bytes = self.page * kv_bytes_per_token
        self._device = Pool(sizes.device_tokens // self.page)
        self._host = Pool(sizes.host_tokens // self.page)
        self._links = links
        self._unaligned = unaligned
        self._listed: set[int] = set()
        self._past = Past()
        self._held: dict[str, Held] = {}
        self.left = self.skipped = 0

    def fits(self, job: Job) -> bool:
        return ceil_div(job.total, self.page) + 2 * self._image <= self._device.capacity

    def admit(self, job: Job) -> Start | None:
        reach = self._device.leading(job.keys, 0, job.usable // self.page)
        hit = self._device.deepest_state(job.keys, 0, reach)
        stored = self._stored(job)
        boundary, reason, refused = self._boundary(job, hit, reach, stored)
        if boundary > hit and refused is None:
            start = self._joint(job, boundary, hit, reach, stored)
            if start is not None:
                return start
            reason, refused = Reason.PARTIAL_CHUNK_NO_ROOM, Loss.NO_ROOM
        held = hold(self._device, job, self.page, hit, self._image, state_key(job.keys[hit - 1]) if hit else None)
        if held is None:
            return None
        self._held[job.id] = held
        lost = self._lost(job, hit, max(reach, stored), refused, boundary)
        tier = Tier.DEVICE if hit else None
        return Start(hit * self.page, hit * self.page, 0, tier, reason, lost)

    def _stored(self, job: Job) -> int:
        """Pages whose KV host holds without a gap, whole chunks alone; their chunks are used by being looked up."""
        names = job.keys[self._chunk - 1 : job.prompt // self.page : self._chunk]
        chunks = self._host.leading(names, 0, len(names))
        self._host.touch(names[:chunks])
        return chunks * self._chunk

    def _boundary(self, job: Job, hit: int, reach: int, stored: int) -> tuple[int, Reason, Loss | None]:
        """Where a load would resume, why it does not go further, and what a load that is refused is lost to."""
        plain = Reason.TOO_SHORT if job.usable < self.page else Reason.COMPLETE
        if stored <= hit:
            return hit, (Reason.NO_RUNG if reach > hit else Reason.WITHIN_HIT if stored else plain), None
        highest = min(stored, job.usable // self.page)
        states = (i for i in range(highest, hit, -1) if self._has_state(job.keys[i - 1]))
        boundary = next(states, hit)
        if not self._unaligned and hit % self._chunk:
            return boundary, Reason.OFF_CHUNK_GRID, Loss.PARTIAL_CHUNK
        if boundary == hit:
            return hit, Reason.NO_RUNG, None
        if (boundary - hit) * self.page < MIN_LOAD:
            return boundary, Reason.TOO_SMALL, Loss.TOO_SMALL
        return boundary, (Reason.NO_RUNG if max(reach, stored) > boundary else Reason.COMPLETE), None

    def _has_state(self, key: int) -> bool:
        return key in self._listed or state_key(key) in self._device

    def _joint(self, job: Job, boundary: int, hit: int, reach: int, stored: int) -> Start | None:
        """KV and state up to `boundary`; None where the pages for it are not there."""
        # Below the split pages are shared, from it on whole chunks are read into private ones.
        split = min(boundary, reach // self._chunk * self._chunk)
        key = job.keys[boundary - 1]
        near = state_key(key) in self._device
        held = hold(self._device, job, self.page, split, self._image, state_key(key) if near else None)
        if held is None:
            return None
        self._held[job.id] = held
        kv = max(0, ceil_to(boundary, self._chunk) - split) if split < boundary else 0
        missing = None if near or state_key(key) in self._host else Reason.LOAD_FAILED_STATE
        if missing is not None:
            self._listed.discard(key)  # the next lookup knows better
        self._host.touch((state_key(key),))
        load = Load(kv * self._page_bytes, 0 if near else self._image * self._page_bytes, missing)
        page = self.page
        reason = Reason.NO_RUNG if max(reach, stored) > boundary else Reason.COMPLETE
        lost = self._lost(job, boundary, max(reach, stored), None, 0)
        host = boundary - max(hit, split)
        return Start(boundary * page, hit * page, host * page, Tier.DEVICE if near else Tier.HOST, reason, lost, load)

    def _lost(
        self, job: Job, boundary: int, reach: int, refused: Loss | None, upto: int
    ) -> tuple[tuple[Loss, int], ...]:
        page = self.page
        return tuple(self._past.lost(job, page, boundary * page, reach * page, refused, upto * page))

    def retreat(self, job: Job, start: Start, reason: Reason) -> Start:
        to = start.hit if self._unaligned else 0
        lost = self._past.lost(job, self.page, to, to, Loss.FAILED_LEG, start.boundary)
        return Start(to, start.hit, 0, Tier.DEVICE if to else None, reason, tuple(lost))

    def chunk_end(self, job: Job, most: int) -> int:
        end = job.computed + most
        stops = ((job.computed // INTERVAL + 1) * INTERVAL, self._last(job), job.prompt)
        first = min(stop for stop in stops if stop > job.computed)
        return first if first <= end else max(job.computed, end // self.page * self.page)

    def _last(self, job: Job) -> int:
        """The last block boundary below the prompt's end."""
        return job.usable // self.page * self.page

    def computed(self, job: Job) -> None:
        held = self._held[job.id]
        first = held.done
        held.publish(self._device, self._past, job, self.page)
        size = sum(self._store(job.keys[i], self._chunk) for i in self._chunk_ends(job, first, held.done))
        images = 0
        at = job.computed
        if 0 < at <= self._last(job) and (at == self._last(job) or at % INTERVAL == 0):
            key = job.keys[at // self.page - 1]
            kept = self._device.add(state_key(key), self._image)
            if job.computed > job.boundary:
                self.left += kept
                self.skipped += not kept
            self._past.note_state(key)
            images = self._store(state_key(key), self._image) if kept else 0
            if kept and state_key(key) in self._host:
                self._listed.add(key)
        if size or images:
            self._links.send((Tier.DEVICE, Tier.HOST), (size + images) * self._page_bytes, images=images > 0)

    def _chunk_ends(self, job: Job, first: int, end: int) -> range:
        """Index of the last page of every chunk of the prompt that ends in pages [first, end)."""
        end = min(end, job.prompt // self.page)
        return range(ceil_to(first + 1, self._chunk) - 1, end, self._chunk)

    def _store(self, key: int, pages: int) -> int:
        """Pages to be copied to host for this entry to be there."""
        return pages if key not in self._host and self._host.add(key, pages) else 0

    def finish(self, job: Job) -> None:
        self._held.pop(job.id).release(self._device)

    def check(self) -> None:
        """Raise AssertionError unless every block is accounted for."""
        self._device.check(sum(held.private for held in self._held.values()))
        self._host.check(0)
