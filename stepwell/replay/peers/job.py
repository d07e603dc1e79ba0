"""What a peer's cache is told of a request, and what it answers: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason

_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)
_SHIFT = np.uint64(29)


class Keys:
    """Names of prefixes: one integer below 2**64 for each whole page of tokens, told apart by everything before it.

    A trace is no adversary: two prefixes that meet in one number are less likely than a bit that flips.
    """

    __slots__ = ("_weights", "page")

    def __init__(self, page: int) -> None:
        self.page = page
        self._weights = np.random.default_rng(page).integers(1, 2**63, page, np.uint64)

    def of(self, tokens: Ints) -> list[int]:
        """One key a whole page, in order. O(tokens), in numpy."""
        count = len(tokens) // self.page
        pages = tokens[: count * self.page].astype(np.uint64).reshape(count, self.page)
        mixed = (pages * self._weights).sum(axis=1, dtype=np.uint64)
        mixed = (mixed ^ (mixed >> _SHIFT)) * _SPREAD
        places = np.cumprod(np.full(count, _SPREAD), dtype=np.uint64)
        return [int(key) for key in np.cumsum((mixed ^ (mixed >> _SHIFT)) * places, dtype=np.uint64).tolist()]


def state_key(key: int) -> int:
    """The name of the state at the end of the prefix that `key` names; negative, so the two never meet."""
    return ~key


@dataclass(slots=True, eq=False)
class Job:
    """A request under way. Lengths in tokens; `keys` are of prompt and answer together.

    boundary  where it started     computed  tokens whose KV is there     sampled  of the answer
    """

    id: str
    keys: list[int]
    prompt: int
    total: int
    boundary: int = 0
    computed: int = 0
    sampled: int = 0

    @property
    def usable(self) -> int:
        """Prompt tokens that a cache may serve: the last one is always computed."""
        return self.prompt - 1

    @property
    def decodes(self) -> bool:
        return self.sampled > 0


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes to be copied from host before the request can start. `missing`: a leg that is known to fail once it is tried."""

    kv_bytes: int
    image_bytes: int
    missing: Reason | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """How a request starts; the terms are those of `AdmissionOutcome`."""

    boundary: int
    hit: int
    host: int
    state_tier: Tier | None
    reason: Reason
    lost: tuple[tuple[Loss, int], ...]
    load: Load | None = None

    def outcome(self, job: Job) -> AdmissionOutcome:
        return AdmissionOutcome(
            request_id=job.id,
            prompt=job.prompt,
            device=self.boundary - self.host,
            host=self.host,
            disk=0,
            recomputed=job.prompt - self.boundary,
            boundary=self.boundary,
            hit=self.hit,
            state_tier=self.state_tier,
            reason=self.reason,
            lost=self.lost,
            loaded=self.load is not None,
        )


class PeerCache(Protocol):
    """A peer's directory. The scheduler calls `admit`, then `computed` as the request goes on, and `finish` once.

    left, skipped  states that were kept, and that were not for want of room
    """

    left: int
    skipped: int

    @property
    def page(self) -> int:
        """Tokens that `Job.keys` name at a time."""

    def fits(self, job: Job) -> bool:
        """Whether it could run if nothing else did."""

    def admit(self, job: Job) -> Start | None:
        """Take all that prompt and answer need; None, and nothing taken, while there is no room."""

    def retreat(self, job: Job, start: Start, reason: Reason) -> Start:
        """A leg of the load failed: how the request starts now, without another load."""

    def chunk_end(self, job: Job, most: int) -> int:
        """Where the next piece of the prompt ends, at most `most` tokens on; `job.computed` where that is too few."""

    def computed(self, job: Job) -> None:
        """`job.computed` has moved: what is new can be found from here on."""

    def finish(self, job: Job) -> None:
        """Give back what only this request holds."""


class Past:
    """All that was ever cached, by name, to say what a recomputed token was lost to."""

    __slots__ = ("_kv", "_states")

    def __init__(self) -> None:
        self._kv: set[int] = set()
        self._states: set[int] = set()

    def note(self, keys: list[int]) -> None:
        self._kv.update(keys)

    def note_state(self, key: int) -> None:
        self._states.add(key)

    def lost(
        self, job: Job, page: int, boundary: int, reach: int, refused: Loss | None, upto: int
    ) -> list[tuple[Loss, int]]:
        """What [boundary, prompt) was lost to. KV reached to `reach`; a load to `upto` was not made, because of `refused`."""
        at, parts = boundary, []
        for loss, end in self._ends(job, page, boundary, reach, refused, upto):
            if end > at:
                parts.append((loss, end - at))
                at = end
        return parts

    def _ends(
        self, job: Job, page: int, boundary: int, reach: int, refused: Loss | None, upto: int
    ) -> list[tuple[Loss, int]]:
        seen, whole = boundary // page, job.usable // page
        while seen < whole and job.keys[seen] in self._kv:
            seen += 1
        deepest = next(
            (i for i in range(min(seen, reach // page), boundary // page, -1) if job.keys[i - 1] in self._states), 0
        )
        first = [(refused, upto)] if refused is not None else []
        return [
            *first,
            (Loss.EVICTED_RUNG, deepest * page),
            (Loss.NO_RUNG, reach),
            (Loss.EVICTED_KV, seen * page),
            (Loss.NEW, job.prompt),
        ]
