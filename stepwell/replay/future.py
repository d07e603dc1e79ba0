"""The least prefill that any cache of a given size could have done, had it known all requests beforehand.

Belady's MIN (1966) on the blocks of prompts: where memory is short, the block that is asked for again last goes. Blocks are of one size
and a prompt needs the front of its path, which is never asked for later than what follows it, so MIN is exact here: no cache that holds
as many tokens at each admission recomputes fewer. It is a floor, not a goal: nothing is charged for rungs, for answers, for the blocks
that running requests hold, or for copies between tiers (all memory counts as one), and no cache knows the future.

    blocks of request i       ──┬── next asked for by request j: one group, a count is enough
                                └── never again: they leave at once
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.replay.lanes import TraceRequest

_Path: TypeAlias = tuple[str, int]
"""Conversation and edition: whose block ids these are."""


class Asked(NamedTuple):
    """One request as it was sent; `measured`: its recomputed tokens count."""

    request: TraceRequest
    measured: bool


def least_prefill(asked: Sequence[Asked], memory: int) -> int:
    """Prompt tokens of the measured requests that `memory` tokens of cache cannot spare them, whatever is kept.

    `asked` in the order of sending. O(b + n log n) for b blocks in n prompts.
    """
    held = _Held(memory)
    total = 0
    for at, ((request, measured), groups) in enumerate(zip(asked, _groups(asked), strict=True)):
        block, prompt = request.conversation.block, request.turn.prompt
        found = min(held.take(at), prompt - 1)
        total += (prompt - found) * measured
        for following, blocks in groups:
            held.add(following, blocks * block)
    return total


def _groups(asked: Sequence[Asked]) -> list[list[tuple[int, int]]]:
    """Per request: (the request that next asks for them, how many blocks), for those of its blocks that are asked for again."""
    never = len(asked)
    following: dict[_Path, Ints] = {}
    groups: list[list[tuple[int, int]]] = []
    for at in range(never - 1, -1, -1):
        request = asked[at].request
        path, ids = (request.conversation.id, request.edition), request.turn.ids()
        known = _reaching(following.get(path), int(ids.max(initial=0)) + 1, never)
        others, counts = np.unique(known[ids], return_counts=True)
        groups.append([(i, n) for i, n in zip(others.tolist(), counts.tolist(), strict=True) if i != never])
        known[ids] = at
        following[path] = known
    return groups[::-1]


def _reaching(known: Ints | None, size: int, never: int) -> Ints:
    """`known` with room for `size` ids; those that are new are asked for by nobody yet."""
    if known is None:
        return np.full(size, never, np.int32)
    if len(known) >= size:
        return known
    return np.concatenate([known, np.full(max(size, 2 * len(known)) - len(known), never, np.int32)])


@dataclass(slots=True)
class _Held:
    """Tokens in the cache by the request that next asks for them."""

    memory: int
    tokens: dict[int, int] = field(default_factory=dict)
    size: int = 0
    last: list[int] = field(default_factory=list)

    def take(self, request: int) -> int:
        """Tokens that are here for `request`; they are no longer waiting for it."""
        found = self.tokens.pop(request, 0)
        self.size -= found
        return found

    def add(self, request: int, tokens: int) -> None:
        """Keep `tokens` for `request`; what is asked for last gives way."""
        if request not in self.tokens:
            heappush(self.last, -request)
        self.tokens[request] = self.tokens.get(request, 0) + tokens
        self.size += tokens
        while self.size > self.memory:
            latest = -self.last[0]
            gone = min(self.tokens.get(latest, 0), self.size - self.memory)
            self.size -= gone
            if gone == self.tokens.get(latest, 0):
                self.tokens.pop(latest, None)
                heappop(self.last)
            else:
                self.tokens[latest] -= gone
