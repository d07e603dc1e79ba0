"""What each tenant holds in each tier, and whose copies are evicted first.

A tenant is the part of a salt before its first colon (`stepwell.cache.disk.names.tenant_of`): one API key, say. While there is room, a
tenant may hold all of it. When something must be evicted, the copies of a tenant that holds its share or more go first, in their own
order. If no tenant does, the order among all tenants counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stepwell.cache.evict.policy import Policy
from stepwell.cache.evict.ranking import Latest, Ranking
from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item


class Tenants:
    """Slots of copies by tenant and tier, and the tenants that hold `share` of a tier or more: at most 1 / `share` of them."""

    def __init__(self, totals: Mapping[Tier, int], share: float) -> None:
        self._share = share
        self._totals = dict(totals)
        self.held: dict[Tier, dict[str, int]] = {tier: {} for tier in totals}
        self._over: dict[Tier, dict[str, None]] = {tier: {} for tier in totals}

    def moved(self, tenant: str, tier: Tier, gained: int) -> None:
        """A copy of `tenant` has come to `tier` (`gained` slots) or gone (negative). O(1)."""
        counts, over = self.held[tier], self._over[tier]
        count = counts.get(tenant, 0) + gained
        if count:
            counts[tenant] = count
        else:
            counts.pop(tenant, None)
        if gained > 0:
            over.pop(tenant, None)  # the tenant that took something last comes last
        if count >= self._share * self._totals[tier]:
            over[tenant] = None
        else:
            over.pop(tenant, None)

    def widen(self, tier: Tier, total: int) -> None:
        """Note that `tier` has grown to `total` slots. O(1 / share)."""
        self._totals[tier] = total
        for tenant in [name for name in self._over[tier] if self.held[tier][name] < self._share * total]:
            del self._over[tier][tenant]

    def greediest(self, tier: Tier) -> tuple[str, ...]:
        """The tenants that hold their whole share of `tier` or more, the largest first. Of equal ones the one that took something last
        comes first: so a tenant at its share that wants more gives up something of its own. O(1 / share · log)."""
        held = self.held[tier]
        ordered = sorted(((held[name], at, name) for at, name in enumerate(self._over[tier])), reverse=True)
        return tuple(name for _, _, name in ordered)


class FairRanking(Ranking):
    """A ranking in which the candidates of tenants that hold more than their share go before all others.

    Each candidate is in the ranking of all and in that of its tenant; taking it out of one removes it from the other.
    """

    def __init__(
        self,
        tier: Tier,
        live: Callable[[Item], bool],
        policy: Policy,
        latest: Latest,
        spares: Callable[[Item], bool],
        settle: Callable[[], None],
        tenants: Tenants,
    ) -> None:
        super().__init__(tier, live, policy, latest, spares, settle)
        self._tenants = tenants
        self._rules = policy
        self._of: dict[str, Ranking] = {}

    def pop(self) -> Item | None:
        self._settle()
        for tenant in self._tenants.greediest(self._tier):
            own = self._of.get(tenant)
            item = None if own is None else own.pop()
            if item is not None:
                self.forget(item)
                return item
        item = super().pop()
        if item is not None:
            self.forget(item)
        return item

    def forget(self, item: Item) -> None:
        """Take `item` out of both rankings; a tenant's goes once it is empty."""
        super().forget(item)
        own = self._of.get(item.tenant)
        if own is not None:
            own.forget(item)
            if own.empty:
                del self._of[item.tenant]

    def clear(self) -> None:
        super().clear()
        self._of.clear()

    def _push(self, item: Item, queue: int, used: float) -> None:
        super()._push(item, queue, used)
        tenant = item.tenant
        own = self._of.get(tenant)
        if own is None:
            own = self._of[tenant] = Ranking(self._tier, self.live, self._rules, self._latest, self._spares)
        own._push(item, queue, used)
