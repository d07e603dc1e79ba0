"""What is known of an external store: beliefs about what it holds, copies into it, leases to be let go.

    unknown ──▶ being stored by ticket t ──▶ stored       a copy that ends badly, a load that fails, or a query that does not find it:
       ▲                 │                      │         unknown again, so that a later request stores it anew
       └─────────────────┴──────────────────────┘

What has been distrusted is never asked for again: from then on, objects of the salt have names that nobody has used (`distrust`).

A belief is only a reason not to store again; whether an object can be loaded is asked each time. The ticket is the generation of a copy:
if the object has been forgotten, or is being stored anew, by the time the copy ends, its report changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.disk.names import Names, Trail
from stepwell.cache.moves import Name, Report

What: TypeAlias = Literal["kv", "image"]

STORED = 0
"""In place of the ticket of a copy: it has ended well. Tickets begin at 1."""


@dataclass(slots=True, eq=False)
class UnstoredPath:
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


_REST, _LONGEST_REST = 4.0, 600.0
"""After a failed copy nothing is stored for so many times as long as it took, and seconds at most: a store that hangs would else hold
pages nearly all of the time."""
_MOST_SALTS = 4096
"""Salts whose objects have names of their own; where there would be more, all salts get new names."""


class External:
    """`least`: tokens that a load must gain. At most `most_unstored` paths wait to be stored, the newest ones; beliefs are kept of at most
    `most_known` objects. `life`: a word of this engine's own that nobody can guess, part of the names of what is distrusted."""

    def __init__(
        self, names: Names, least: int, most_unstored: int = 256, most_known: int = 1 << 20, life: str = ""
    ) -> None:
        self._names = names
        self._life = life
        self._distrusts = 0
        self._turns: dict[str, int] = {}  # by salt, the number of the last distrust
        self._turn = 0  # that of all other salts
        self.least = max(1, least)
        self.unstored: deque[UnstoredPath] = deque(maxlen=most_unstored)
        self.saving: dict[int, Saving] = {}
        self.released: list[int] = []
        self.forgotten: list[tuple[What, Name]] = []
        self._asked = 0
        self._rest, self._rests_until = 0.0, 0.0
        self._leases: set[int] = set()
        self._known: dict[tuple[What, bytes], int] = {}
        self._dropped: dict[tuple[What, bytes], int] = {}  # with the number of the last query before
        self._most = most_known

    @property
    def chunk(self) -> int:
        """Tokens of one object of KV."""
        return self._names.chunk

    @property
    def leases(self) -> int:
        """Answers that are held."""
        return len(self._leases)

    @property
    def idle(self) -> bool:
        """No answer is held, and no copy into the store is under way."""
        return not (self._leases or self.saving)

    # ---- names --------------------------------------------------------------------------------------------

    def trail(self, salt: str, tokens: Ints) -> Trail:
        """What the objects of `tokens` are called now."""
        return self._names.trail(self._called(salt), tokens)

    def is_distrusted(self, salt: str, trail: Trail) -> bool:
        """Whether objects of this trail, which was made for `salt`, are not to be loaded any more."""
        return bool(self._distrusts) and trail.root != self._names.root(self._called(salt))

    def distrust(self, salt: str | None) -> None:
        """Ask for nothing that has been stored under this salt, or (None) under any; what waits to be stored is dropped. New objects get
        names that only this engine knows: no other engine shares them, and a later one does not find them."""
        self._distrusts += 1
        if salt is None or len(self._turns) >= _MOST_SALTS:
            self._turns, self._turn = {}, self._distrusts
        else:
            self._turns[salt] = self._distrusts
        for path in [path for path in self.unstored if self.is_distrusted(path.salt, path.trail)]:
            self.unstored.remove(path)

    def condemn(self, salt: str, paths: Sequence[Ints], grid: int) -> None:
        """Have the store drop all objects of these token sequences under their names of now, with states at multiples of `grid`, and
        distrust the salt. O(chunks) digests."""
        kv: dict[bytes, Name] = {}
        images: dict[bytes, Name] = {}
        for tokens in paths:
            trail = self.trail(salt, tokens)
            kv.update((name.digest, name) for name in trail.records(0, floor_to(len(tokens), self.chunk)))
            images.update((trail.at(end), trail.image(end)) for end in range(grid, len(tokens) + 1, grid))
        self.forget("kv", kv.values())
        self.forget("image", images.values())
        self.distrust(salt)

    def _called(self, salt: str) -> str:
        turn = self._turns.get(salt, self._turn)
        return f"{salt}\0{self._life}\0{turn}" if turn else salt

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
        """These are not to be loaded: the store is told to drop them, and they may be stored again. The end of a copy that is storing
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
            self.unstored.append(UnstoredPath(salt, tokens, self.trail(salt, tokens)))

    def rests(self, now: float) -> bool:
        """Whether nothing is to be stored for now, since the store has been slow to fail."""
        if self._rest:
            self._rests_until, self._rest = now + self._rest, 0.0
        return now < self._rests_until

    def begin(self, ticket: int, saving: Saving) -> None:
        """Record that a copy of this object into the store has begun: until it has `landed`, `knows` is True of it."""
        self.saving[ticket] = saving
        key = saving.what, saving.name.digest
        self._dropped.pop(key, None)
        _note(self._known, key, ticket, self._most)

    def landed(self, report: Report) -> None:
        """A copy has ended; any ticket that is not one of these is ignored. What has been forgotten meanwhile is dropped once more."""
        saving = self.saving.pop(report.ticket, None)
        if saving is None:
            return
        if not report.ok:
            self._rest = max(self._rest, min(_LONGEST_REST, _REST * report.seconds))
        key = (saving.what, saving.name.digest)
        if self._known.get(key) != report.ticket:
            if key in self._dropped and key not in self._known:
                self.forgotten.append((saving.what, saving.name))
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
