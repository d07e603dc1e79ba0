"""What is worth keeping: policies by name. A policy moves memory and time, never an answer.

    ladder   the tip of a path stays longest, what deeper rungs supersede goes soon; below the device images outlive KV (the default)
    lru      what was used last goes last, whatever it is
    slru     the same in two segments: what has been used again since it came ages slower than what has not
    value    prefill time saved × likelihood of use ÷ bytes

A policy sorts copies into queues, each by last use. In queue i time runs `weights[i]` times as fast: the next to go is the head of the
queue whose weighed age is the greatest. So nothing depends on how long an hour is: a trace played twice as fast keeps the same things.
(If the rate of use falls with age as 1/age, a copy that is half as likely or twice as large is worth as much as one twice as old:
hyperbolic caching, Blankstein et al. 2017, with classes in the place of sampling.) Queue 0 goes before all others, at any age.

Under every policy KV goes leaf first, what is leased stays, and what is guarded by a keep goes after everything that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2
from types import MappingProxyType
from typing import ClassVar, Protocol

from stepwell.base.errors import ConfigError
from stepwell.cache.moves import Tier
from stepwell.cache.ranking import Value, worthless
from stepwell.cache.tree import Item, Node


class Policy(Protocol):
    """One answer to what goes first. Stateless: two directories may share one.

    weights   per queue: how fast its copies age; the first is not looked at
    thins     whether rungs that deeper ones supersede, and answers that the next turn left out, are marked at all
    """

    @property
    def weights(self) -> tuple[float, ...]: ...

    @property
    def thins(self) -> bool: ...

    def value(self, item: Item, tier: Tier) -> Value:
        """(queue, last use) of the copy of `item` in `tier`."""


class Ladder:
    """On the device a rung's queue is how many rungs have been left below it on its path since it was last used: the tip (0), the
    one before (1: the prompt's end, if the answer is not repeated), the one the last turn resumed from (2: if that turn is taken
    back), and older ones (3) or answers left out. What many have resumed from is its own queue. Below the device, images (small)
    outlive KV (large), superseded ones less so.

    The weights are the best of a few dozen tried with `stepwell replay` on agent traces and with `bench/admission.py`.
    """

    thins = True
    weights = (0.0, 1.0, 8.0, 4.0, 64.0, 0.1, 0.25, 2.0)
    _BY_DEPTH = (1, 2, 3, 4)
    _POPULAR = 5
    _BELOW = 6
    _SUPERSEDED_BELOW = 7

    def value(self, item: Item, tier: Tier) -> Value:
        node = item.node
        rung = node.rung
        if item.what == "kv":
            queue = self._POPULAR if rung is not None and rung.uses >= POPULAR else 1
            return (0 if worthless(item) else queue), node.used
        assert rung is not None
        if tier != Tier.DEVICE:
            if node.kv.best() is None:
                return 0, rung.used
            return (self._SUPERSEDED_BELOW if rung.superseded else self._BELOW), rung.used
        if not node.kv.has(tier):
            return 0, rung.used
        return (self._POPULAR if rung.uses >= POPULAR else self._BY_DEPTH[rung.depth]), rung.used


POPULAR = 3
"""Uses that make a rung one of many conversations (a system prompt's end); a turn that is taken back makes two."""


class LeastRecent:
    """One queue by last use."""

    thins = False
    weights = (0.0, 1.0)

    def value(self, item: Item, tier: Tier) -> Value:
        return 1, _used(item)


class Segmented:
    """Two queues by last use: what came, and what was used again since; the second ages an eighth as fast."""

    thins = False
    weights = (0.0, 1.0, 0.125)

    def value(self, item: Item, tier: Tier) -> Value:
        return (2 if _uses(item) else 1), _used(item)


class Worth:
    """Queues by the power of two of prefill saved × likelihood ÷ bytes.

    An image saves the tokens down to it from the rung above, at the price of its own size in tokens; KV saves what it holds. The
    likelihood grows with past uses. After GreedyDual-Size-Frequency (Cherkasova 1998), with weighed age for its running clock.
    """

    thins = True
    _MIDDLE = 7
    weights: ClassVar[tuple[float, ...]] = (0.0, *(2.0 ** (7 - queue) for queue in range(1, 14)))

    def __init__(self, block: int) -> None:
        self._block = block

    def value(self, item: Item, tier: Tier) -> Value:
        if worthless(item):
            return 0, _used(item)
        worth = 1.0 + _uses(item)
        if item.what == "image":
            rung = item.node.rung
            assert rung is not None
            if rung.superseded and tier == Tier.DEVICE:
                return 1, rung.used
            worth *= max(1, spared(item.node)) / (max(1, *map(item.size, Tier)) * self._block)
        return min(13, max(1, self._MIDDLE + round(log2(worth)))), _used(item)


def _used(item: Item) -> float:
    rung = item.node.rung
    return rung.used if item.what == "image" and rung is not None else item.node.used


def _uses(item: Item) -> int:
    rung = item.node.rung
    return rung.uses if item.what == "image" and rung is not None else item.node.uses


def spared(node: Node) -> int:
    """Tokens that would be computed again from the rung above, were the one at `node` gone."""
    path = node.up()
    next(path)
    above = next((n.end for n in path if n.rung is not None and n.rung.image.best() is not None), 0)
    return node.end - above


DEFAULT = "ladder"

POLICIES: Mapping[str, Callable[[int], Policy]] = MappingProxyType(
    {
        "ladder": lambda block: Ladder(),
        "lru": lambda block: LeastRecent(),
        "slru": lambda block: Segmented(),
        "value": Worth,
    }
)
"""By name: tokens in a page → the policy."""

SAID = MappingProxyType(
    {
        "ladder": "the tip of a path stays longest, what deeper rungs supersede goes soon",
        "lru": "least recently used first, KV and rungs alike",
        "slru": "the same, but what has been used again ages slower",
        "value": "prefill time saved × likelihood ÷ bytes",
    }
)
"""One line on each, for help."""


def policy_named(name: str, block: int) -> Policy:
    """The policy of this name. Raises ConfigError."""
    if name not in POLICIES:
        raise ConfigError(f"--cache-policy {name!r} is unknown: use one of {', '.join(POLICIES)}")
    return POLICIES[name](block)
