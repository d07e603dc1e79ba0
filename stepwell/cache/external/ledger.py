"""What is known of an external store: beliefs about what it holds, copies into it, leases to be let go.

    unknown ──▶ being stored by ticket t ──▶ stored       a copy that ends badly, a load that fails, or a query that does not find it:
       ▲                 │                      │         unknown again, so that a later request stores it anew
       └─────────────────┴──────────────────────┘

A belief is only a reason not to store again; whether an object can be loaded is asked each time. The ticket is the generation of a copy:
if the object has been forgotten, or is being stored anew, by the time the copy ends, its report changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepwell.base.geometry import Ints
from stepwell.cache.disk.names import Names, Trail
from stepwell.cache.moves import Name, Report

What: TypeAlias = Literal["kv", "image"]

STORED = 0
"""In place of the ticket of a copy: it has ended well. Tickets begin at 1."""


@dataclass(slots=True, eq=False)
class Behind:
    """Tokens whose chunks and images are to be stored; those before chunk `at` have been looked at."""

    salt: str
    tokens: Ints
    trail: Trail
    at: int = 0


@dataclass(frozen=True, slots=True)
class Saving:
    """A copy into the store under way: one object, of so many pages."""

    what: What
    name: Name
    pages: int


class External:
    """`least`: tokens that a load must gain. At most `most_behind` paths wait to be stored, the newest ones; beliefs are kept of at most
    `most_known` objects."""

    def __init__(self, names: Names, least: int, most_behind: int = 256, most_known: int = 1 << 20) -> None:
        self.names = names
        self.least = max(1, least)
        self.behind: deque[Behind] = deque(maxlen=most_behind)
        self.saving: dict[int, Saving] = {}
        self.released: list[int] = []
        self.forgotten: list[tuple[What, Name]] = []
        self._asked = 0
        self._leases: set[int] = set()
        self._known: dict[tuple[What, bytes], int] = {}
        self._dropped: dict[tuple[What, bytes], int] = {}  # with the number of the last query before
        self._most = most_known

    @property
    def chunk(self) -> int:
        """Tokens of one object of KV."""
        return self.names.chunk

    @property
    def leases(self) -> int:
        """Answers that are held."""
        return len(self._leases)

    @property
    def idle(self) -> bool:
        """No answer is held, and no copy into the store is under way."""
        return not (self._leases or self.saving)

    # ---- leases -------------------------------------------------------------------------------------------

    def number(self) -> int:
        """A number for one query, never used again."""
        self._asked += 1
        return self._asked

    def hold(self, number: int) -> None:
        """The answer to this query is leased."""
        self._leases.add(number)

    def let_go(self, number: int) -> None:
        """Release it; a second time does no harm."""
        if number in self._leases:
            self._leases.discard(number)
            self.released.append(number)

    # ---- beliefs ------------------------------------------------------------------------------------------

    def knows(self, what: What, name: Name) -> bool:
        """Whether the store is believed to have this object, or is getting it."""
        return (what, name.digest) in self._known

    def believes(self, what: What, name: Name) -> bool:
        """Whether the store is believed to have it: a copy of it has ended well, or a query has found it."""
        return self._known.get((what, name.digest)) == STORED

    def saw(self, what: What, names: Iterable[Name], number: int) -> None:
        """The store had these when query `number` was answered. What has been forgotten since it was asked stays forgotten, and what is
        being stored is left to its copy."""
        for name in names:
            key = what, name.digest
            if self._known.get(key, STORED) == STORED and self._dropped.get(key, 0) < number:
                _note(self._known, key, STORED, self._most)

    def missed(self, what: What, names: Iterable[Name]) -> None:
        """The store has not got these, unless they are being stored."""
        for name in names:
            if self.believes(what, name):
                del self._known[what, name.digest]

    def forget(self, what: What, names: Iterable[Name]) -> None:
        """A load of these has failed: the store is told to drop them, and they may be stored again. The end of a copy that is storing
        one of them now changes nothing any more."""
        for name in names:
            key = what, name.digest
            self._known.pop(key, None)
            _note(self._dropped, key, self._asked, self._most)
            self.forgotten.append((what, name))

    # ---- copies into the store ----------------------------------------------------------------------------

    @property
    def saving_pages(self) -> int:
        """Pages that copies under way hold. O(copies)."""
        return sum(saving.pages for saving in self.saving.values())

    def leave(self, salt: str, tokens: Ints) -> None:
        """These tokens have been computed: what the store lacks of them is to be stored."""
        if len(tokens) >= self.chunk:
            self.behind.append(Behind(salt, tokens, self.names.trail(salt, tokens)))

    def begin(self, ticket: int, saving: Saving) -> None:
        """A copy into the store begins."""
        self.saving[ticket] = saving
        key = saving.what, saving.name.digest
        self._dropped.pop(key, None)
        _note(self._known, key, ticket, self._most)

    def landed(self, report: Report) -> None:
        """A copy has ended; any ticket that is not one of these is ignored."""
        saving = self.saving.pop(report.ticket, None)
        if saving is None:
            return
        key = (saving.what, saving.name.digest)
        if self._known.get(key) != report.ticket:
            return
        if report.ok:
            self._known[key] = STORED
        else:
            del self._known[key]


def _note(known: dict[tuple[What, bytes], int], key: tuple[What, bytes], state: int, most: int) -> None:
    """Enter `key` as the newest; the oldest goes where there are more than `most`."""
    known.pop(key, None)
    known[key] = state
    if len(known) > most:
        del known[next(iter(known))]
