"""Which copy of a tier is evicted next. A policy decides about memory and time, never about answers.

The engine has one, `LadderPolicy`: the tip of a path stays longest; rungs superseded by deeper ones, and branches that were left, go soon;
below the device, images outlive KV. Other policies can be simulated for comparison (`stepwell.replay.eviction`).

A policy sorts copies into queues, each ordered by last use. In queue i, time runs `weights[i]` times as fast: the next to be evicted is the
head with the greatest weighed age. So only ratios of times matter: a trace played twice as fast keeps the same entries.
(If the rate of use falls with age as 1/age, a copy that is half as likely or twice as large is worth as much as one twice as old:
hyperbolic caching, Blankstein et al. 2017, with classes instead of sampling.) Queue 0 is evicted before all others, at any age.

Some rules hold under every policy (`stepwell.cache.evict.ranking`): KV is evicted leaf first; leased copies stay; the last copy of a rung
whose loss would leave a wide gap is evicted after the KV that it serves; pinned copies are evicted last.

`AnswerReuse`, `BranchReuse` and `Regret` hold what is learnt from past requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from stepwell.cache.moves import DEVICE, Tier
from stepwell.cache.tree import Item

Value: TypeAlias = tuple[int, float]
"""(queue, last use)."""


class Policy(Protocol):
    """The eviction order. Stateless: two directories may share one policy.

    weights   per queue: how fast its copies age; the first is not used
    thins     whether superseded rungs, answers not sent back and branches left lose value
    """

    @property
    def weights(self) -> tuple[float, ...]: ...

    @property
    def thins(self) -> bool: ...

    def value(self, item: Item, tier: Tier) -> Value:
        """(queue, last use) of the copy of `item` in `tier`."""


class LadderPolicy:
    """On the device a rung's queue is how many rungs have been left below it on its path since it was last used: the tip (0), the
    one before (1: the prompt's end, if the answer is not repeated), the one the last turn resumed from (2: if that turn is taken
    back), and older ones (3). What many have resumed from is its own queue. Below the device, images (small) outlive KV (large),
    superseded ones do not. A branch that its path has left ages by how seldom such branches are gone back to.

    The weights are the best of a few dozen tried with `bench/thrash.py` and `stepwell replay` on agent traces.
    """

    thins = True
    weights = (0.0, 1.0, 2.0, 16.0, 512.0, 0.1, 0.25, 32.0, 2.0, 16.0, 64.0, 256.0)
    _BY_DEPTH = (1, 2, 3, 4)
    _POPULAR = 5
    _BELOW = 6
    _SUPERSEDED_BELOW = 7
    _LEFT = 7
    """Plus `Node.left`, from 1."""

    def value(self, item: Item, tier: Tier) -> Value:
        node = item.node
        rung = node.rung
        if item.what == "kv":
            if worthless(item):
                return 0, node.used
            if node.left:
                return self._LEFT + node.left, node.used
            return (self._POPULAR if rung is not None and rung.uses >= POPULAR else 1), node.used
        assert rung is not None
        if not (node.kv.has(tier) if tier == DEVICE else node.kv.best() is not None) or (rung.depth and rung.given_up):
            return 0, rung.used
        if node.left and not rung.superseded:
            return self._LEFT + node.left, rung.used
        if tier != DEVICE:
            return (self._SUPERSEDED_BELOW if rung.superseded else self._BELOW), rung.used
        return (self._POPULAR if rung.uses >= POPULAR else self._BY_DEPTH[rung.depth]), rung.used


POPULAR = 3
"""Uses that make a rung one of many conversations (a system prompt's end); a turn that is taken back makes two."""


def worthless(item: Item) -> bool:
    """True if no request could resume with `item`, so that it is not worth a copy. (Items in queue 0 may be: an image whose KV has moved
    to host.)"""
    if item.what == "image":
        return item.node.kv.best() is None
    return item.node.rung is None and not any(item.below) and not item.node.awaited


# ---- what is learnt -----------------------------------------------------------------------------------------------

_KEEP = 0.98
"""Factor for the weight of earlier events at each new one: about the last fifty count."""


@dataclass(slots=True)
class AnswerReuse:
    """How often clients send answers back unchanged: counts turns that continue the answer before, and turns that do not (because the
    template renders it differently, say)."""

    repeated: float = 1.0
    left_out: float = 0.0

    def saw(self, repeated: bool) -> None:
        """Count a turn that continued the answer before, or did not."""
        self.repeated = self.repeated * _KEEP + repeated
        self.left_out = self.left_out * _KEEP + (not repeated)

    @property
    def in_vain(self) -> bool:
        """True if hardly any answer is continued. Rungs at the ends of answers are then evicted first and not copied down."""
        return self.left_out > 12 * self.repeated


@dataclass(slots=True)
class BranchReuse:
    """How often requests return to a branch after its conversation went on elsewhere: to a compacted history hardly ever, to one of
    several agents that share a head nearly always."""

    left: float = 4.0
    returned: float = 2.0

    def leave(self) -> int:
        """Count a branch as left. Returns its `Node.left`: 1 (likely to be asked for again soon) to 4 (hardly ever)."""
        rate = self.returned / self.left
        self.left = self.left * _KEEP + 1
        self.returned *= _KEEP
        return 1 + sum(rate < bound for bound in (0.5, 0.125, 0.03))

    def come_back(self) -> None:
        """Count a request that continued a branch that had been left."""
        self.returned += 1


@dataclass(slots=True)
class Regret:
    """Whether the working set exceeds memory: tokens of recent prompts, and those of them whose KV had been evicted from every tier."""

    asked: float = 0.0
    evicted: float = 0.0

    def saw(self, tokens: int, evicted: int) -> None:
        """Count a prompt of `tokens` tokens, of which `evicted` had lost their KV in every tier."""
        self.asked = self.asked * _REMEMBER + tokens
        self.evicted = self.evicted * _REMEMBER + evicted

    @property
    def thrashes(self) -> bool:
        """True if KV is missed so often that rungs kept for possible forks should make room for it."""
        return self.evicted * 1000 > self.asked


_REMEMBER = 0.995
"""The same factor for prompts: a missed one counts for hundreds of prompts."""
