"""What is worth keeping: policies by name. A policy moves memory and time, never an answer.

    ladder   two rungs a path stay on the device, what deeper rungs supersede goes first; below it, images outlive KV (the default)
    lru      what was used last goes last, whatever it is
    slru     the same in two segments: what has been used again since it came outlives what has not
    value    prefill time saved × likelihood of use ÷ bytes; of equal worth, what was used last goes last

Values order candidates: the smallest goes first. Under every policy KV goes leaf first, what is leased stays, and bytes that nothing
can resume from (class 0) go before all else, except that `lru` and `slru` do not look at that: they are what one would do without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from types import MappingProxyType
from typing import Protocol

from stepwell.base.errors import ConfigError
from stepwell.cache.moves import Tier
from stepwell.cache.ranking import Value, worthless
from stepwell.cache.tree import Item, Node

STALE_S = 600.0
"""s by which a superseded rung counts as longer unused than it is, below the device: a quick look at agents' think times."""
SPARED_PER_S = 20.0
"""Tokens between a superseded rung and the one above it that make up for one second of that."""
LIKELY_S = 900.0
"""s without use in which the likelihood of another falls to a third: what `value` trades against size and savings."""
SEGMENT_S = 3600.0
"""s by which `slru` counts what has been used again as used later than it was; it bounds what one good hour can hold on to."""


class Policy(Protocol):
    """One answer to what goes first. Stateless: two directories may share one.

    thins   whether rungs that deeper ones supersede, and answers that the next turn left out, are marked at all
    """

    @property
    def thins(self) -> bool: ...

    def value(self, item: Item, tier: Tier) -> Value:
        """(class, worth within it) of the copy of `item` in `tier`. Must not fall by itself as time passes."""


class Ladder:
    """Three classes, least valuable first; within a class, least recently used first:

    0  bytes that nothing can resume from: KV past the last rung of its path, images whose KV has left the tier
    1  rungs superseded by two deeper ones of the same path, or of answers that the next turn has not repeated
    2  everything else
    3  below the device: images outlive KV; superseded ones are among the rest there, as if unused for longer, the more so the less
       they spare
    """

    thins = True

    def value(self, item: Item, tier: Tier) -> Value:
        node = item.node
        if item.what == "kv":
            return (0 if worthless(item) else 2), node.used
        rung = node.rung
        assert rung is not None
        if tier != Tier.DEVICE:
            if node.kv.best() is None:
                return 0, rung.used
            if rung.superseded:
                return 2, rung.used - STALE_S + spared(node) / SPARED_PER_S
            return 3, rung.used
        if not node.kv.has(tier):
            return 0, rung.used
        return (1 if rung.superseded else 2), rung.used


class LeastRecent:
    """One queue by last use."""

    thins = False

    def value(self, item: Item, tier: Tier) -> Value:
        return 1, _used(item)


class Segmented:
    """Two queues by last use: one for what came, one for what was used again since. The second outlives the first by `SEGMENT_S`."""

    thins = False

    def value(self, item: Item, tier: Tier) -> Value:
        return 1, _used(item) + (SEGMENT_S if _uses(item) else 0.0)


class Worth:
    """Prefill saved × likelihood ÷ bytes, as a moment: one e-fold of worth counts as much as `LIKELY_S` of age.

    An image saves the tokens down to it from the rung above, at the price of its own size in tokens; KV saves what it holds.
    Likelihood grows with past uses and falls exponentially with age. After GreedyDual-Size-Frequency (Cherkasova 1998), with time
    for its running clock.
    """

    thins = True

    def __init__(self, block: int) -> None:
        self._block = block

    def value(self, item: Item, tier: Tier) -> Value:
        if worthless(item):
            return 0, _used(item)
        node = item.node
        likely = 1.0 + _uses(item)
        if item.what == "kv":
            return 1, node.used + LIKELY_S * log(likely)
        rung = node.rung
        assert rung is not None
        if tier == Tier.DEVICE and rung.superseded:
            return 0, rung.used
        saved = max(1, spared(node)) / (max(1, *map(item.size, Tier)) * self._block)
        return 1, rung.used + LIKELY_S * log(likely * saved)


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
        "ladder": "two rungs a path on the device, superseded ones first; below it images outlive KV",
        "lru": "least recently used first, KV and rungs alike",
        "slru": "the same, but what has been used again outlives what has not",
        "value": "prefill time saved × likelihood ÷ bytes",
    }
)
"""One line on each, for help."""


def policy_named(name: str, block: int) -> Policy:
    """The policy of this name. Raises ConfigError."""
    if name not in POLICIES:
        raise ConfigError(f"--cache-policy {name!r} is unknown: use one of {', '.join(POLICIES)}")
    return POLICIES[name](block)
