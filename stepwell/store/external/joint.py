"""One external store over those of all ranks: what it answers is leased on every rank.

    question ──▶ all ranks ──▶ answers ─┬─ one boundary ────────────────────────▶ answer
                     ▲                  └─ several: ask again, up to the least ─┐
                     └──────────────────────────────────────────────────────────┘

Each rank's store evicts what it likes, so their answers may differ. A boundary is of use only where every rank holds it. Each further
round asks for less, so there are at most as many rounds as the question names states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Name


class RankStores(Protocol):
    """The external stores of all ranks, rank 0 first. Nothing here waits."""

    def look_up(self, query: Query, ranks: int) -> None:
        """Have the first `ranks` ranks answer this. What a rank finds is leased there until `release`."""

    def answers(self) -> Sequence[tuple[int, QueryAnswer]]:
        """Answers since the last call, each with its rank."""

    def release(self, number: int) -> None:
        """End the leases of a query on all ranks, or give it up there. Unknown numbers are ignored."""

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """Drop these objects on all ranks."""


@dataclass(slots=True, eq=False)
class _Round:
    """One question to so many ranks. `number`: of the query that it serves. `reach`: as found by the rounds before; None in the first."""

    number: int
    asked: Query
    ranks: int
    reach: int | None
    answers: dict[int, QueryAnswer] = field(default_factory=dict)


class JointStore:
    """An `ExternalStore` (see `stepwell.sched.probe`) over `stores`. `ranks`: how many ranks a lookup asks from now on, the first
    ones. Where these are not all, the others may lack what is offered; a load finds that out, and fails."""

    def __init__(self, stores: RankStores, ranks: int) -> None:
        assert ranks > 0, "there is at least one rank"
        self._stores = stores
        self.ranks = ranks
        self._numbers = 0
        self._rounds: dict[int, _Round] = {}
        self._held: dict[int, list[int]] = {}  # by query: the numbers of its rounds that may hold a lease

    def look_up(self, query: Query) -> None:
        """See `ExternalStore.look_up`."""
        self._held[query.number] = []
        self._ask(query.number, query, None)

    def answers(self) -> Sequence[QueryAnswer]:
        """See `ExternalStore.answers`."""
        found: list[QueryAnswer] = []
        for rank, answer in self._stores.answers():
            asking = self._rounds.get(answer.number)
            if asking is None:
                continue  # given up, and released on all ranks
            asking.answers[rank] = answer
            if len(asking.answers) == asking.ranks and (said := self._conclude(self._rounds.pop(answer.number))):
                found.append(said)
        return found

    def release(self, number: int) -> None:
        """See `ExternalStore.release`."""
        for held in self._held.pop(number, ()):
            self._rounds.pop(held, None)
            self._stores.release(held)

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """See `ExternalStore.forget`."""
        self._stores.forget(what, names)

    def _ask(self, number: int, query: Query, reach: int | None) -> None:
        self._numbers += 1
        asked = replace(query, number=self._numbers)
        self._rounds[self._numbers] = _Round(number, asked, self.ranks, reach)
        self._held[number].append(self._numbers)
        self._stores.look_up(asked, self.ranks)

    def _conclude(self, asking: _Round) -> QueryAnswer | None:
        """The answer, if all ranks agree; else None, and the next round has begun. Earlier rounds hold their leases until then."""
        asked, given = asking.asked, asking.answers.values()
        reach, least = min(one.reach for one in given), min(one.boundary for one in given)
        if asking.reach is not None and (not asked.kv or reach >= asked.kv[-1].end):
            reach = asking.reach  # the first round has asked for more
        if least and any(one.boundary > least for one in given):
            kv = tuple(name for name in asked.kv if name.end <= least)
            images = tuple(name for name in asked.images if name.end <= least)
            self._ask(asking.number, replace(asked, kv=kv, images=images), reach)
            return None
        self._keep(asking.number, asked.number if least else None)
        return QueryAnswer(asking.number, reach, least)

    def _keep(self, number: int, kept: int | None) -> None:
        """Release all rounds of a query but this."""
        for held in self._held[number]:
            if held != kept:
                self._stores.release(held)
        if kept is None:
            del self._held[number]
        else:
            self._held[number] = [kept]
