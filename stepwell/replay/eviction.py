"""Eviction orders by name. Servers have one, `ladder` (`stepwell.cache.evict.policy`); the other is simulated to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stepwell.base.errors import ConfigError
from stepwell.cache.evict.policy import LadderPolicy, Policy, Value, worthless
from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item

DEFAULT = "ladder"


class LeastRecent:
    """One queue by last use; what nothing can resume from goes first."""

    thins = False
    weights = (0.0, 1.0)

    def value(self, item: Item, tier: Tier) -> Value:
        rung = item.node.rung
        return int(not worthless(item)), rung.used if item.what == "image" and rung is not None else item.node.used


POLICIES: Mapping[str, Policy] = MappingProxyType({"ladder": LadderPolicy(), "lru": LeastRecent()})

SAID = MappingProxyType(
    {
        "ladder": "what serves: the tip of a path stays longest, what deeper rungs supersede goes soon",
        "lru": "least recently used first, KV and rungs alike",
    }
)
"""One line on each, for help."""


def policy_named(name: str) -> Policy:
    """The policy of this name. Raises ConfigError."""
    if name not in POLICIES:
        raise ConfigError(f"--policy {name!r} is unknown: use one of {', '.join(POLICIES)}")
    return POLICIES[name]
