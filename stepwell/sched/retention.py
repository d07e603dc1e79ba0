"""Hints of callers: a prompt will be asked for again, until some time (a pin), or soon (a prefetch).

Hints change what is kept and move bytes, never an answer. `stepwell.cache.hints` does the work; this module decides when. A
prefetch holds no live slot and ends when none of its copies is in flight. What the disk holds of a prompt is looked up a few records a
turn, as for requests: a prefetch begins when all of that is known, and a pin then covers all of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.disk.learn import learn_some
from stepwell.cache.evict.make_room import demote
from stepwell.cache.evict.pins import Label
from stepwell.cache.hints import Fetch, Status, expire, fetch, pin, resident, unpin
from stepwell.cache.moves import Move, Tier
from stepwell.cache.tree import Node

MOST_ORDERS = 64
"""Most prefetches that are open at once; further ones end as `busy`. As many pins may wait for the index of the disk."""
_TRIES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The prompt and salt of a pin or a prefetch."""

    salt: str
    prompt: Ints


@dataclass(frozen=True, slots=True)
class Prefetched:
    """The result of one prefetch.

    tokens              boundary that the device alone can resume now
    device, host, disk  tokens of KV up to there that were on the device, or came from host and disk
    """

    number: int
    status: Status
    tokens: int = 0
    device: int = 0
    host: int = 0
    disk: int = 0


@dataclass(slots=True)
class HintCounts:
    """Prefetches that have ended, by status, and the tokens that they loaded."""

    prefetches: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    prefetched_tokens: int = 0


@dataclass(slots=True)
class _Prefetch:
    """A prefetch that has not ended. It may wait `tries` times more for room; `making_room` are the tickets of copies that make some."""

    number: int
    subject: Subject
    fetch: Fetch
    since: float
    tries: int
    making_room: frozenset[int] = frozenset()

    @property
    def waits(self) -> bool:
        """True if it waits for room and has begun no copy."""
        return self.fetch.lack > 0 and self.tries > 0

    def open(self, directory: Directory) -> bool:
        """True if a copy that it waits for is in flight. Copies that began later do not count: there may always be some."""
        tickets = self.making_room if self.waits else {move.ticket for move in self.fetch.moves}
        return any(ticket in directory.in_flight for ticket in tickets)


@dataclass(frozen=True, slots=True, eq=False)
class _PartialPin:
    """A pin whose prompt is being looked up on disk, since `since`."""

    subject: Subject
    until: float
    since: float


class Retention:
    """Begins and ends hints. Owned by the loop.

    patience  seconds after which a prefetch ends although its copies were not reported, and after which a hint stops waiting for the
              index of the disk; 0: for ever
    records   most records of an earlier process that all hints together look up in one turn
    """

    def __init__(self, directory: Directory, patience: float = 0.0, records: int = 64) -> None:
        self._directory = directory
        self._patience = patience
        self._records = self._left = records
        self.counts = HintCounts()
        self._orders: list[_Prefetch] = []
        self._unknown: list[_Prefetch] = []  # whose prompts are looked up on disk first
        self._pins: dict[Label, _PartialPin] = {}
        self._done: list[Prefetched] = []

    @property
    def busy(self) -> bool:
        """True if a prefetch is open, or a hint waits for the index of the disk."""
        return bool(self._orders) or self.asking

    @property
    def asking(self) -> bool:
        """True if the prompt of a hint is still being looked up on disk."""
        return bool(self._unknown or self._pins)

    def turn(self, now: float) -> list[Move]:
        """End hints that are over and begin those that are due. Called once a turn; returns moves to carry out. O(1) without hints."""
        self._left = self._records
        expire(self._directory, now)
        moves = self._settle(now) if self._orders else []
        self._pin_the_rest(now)
        moves += self._begin_known(now)
        return moves

    # ---- callers ----------------------------------------------------------------------------------------------

    def pin(self, subject: Subject, until: float, now: float) -> int:
        """Pin what is known to be cached of a prompt. Returns the number of tokens pinned.

        If the disk holds more of it, that is looked up in later turns, and then pinned too.
        """
        label, wanted = _label(subject), _PartialPin(subject, until, now)
        self._pins.pop(label, None)
        if not self._look_up(subject, now) and len(self._pins) < MOST_ORDERS:
            self._pins[label] = wanted
        return pin(self._directory, label, subject.prompt, until)

    def unpin(self, subject: Subject) -> int:
        """End a pin. Returns the number of tokens that were pinned."""
        label = _label(subject)
        self._pins.pop(label, None)
        return unpin(self._directory, label)

    def prefetch(self, number: int, subject: Subject, now: float) -> list[Move]:
        """Begin to load a prompt to the device. `finished` returns the result under `number`. Returns moves to carry out."""
        if len(self._orders) + len(self._unknown) >= MOST_ORDERS:
            self._tell(Prefetched(number, Status.BUSY))
            return []
        order = _Prefetch(number, subject, Fetch(Status.UNKNOWN), now, _TRIES)
        if not self._look_up(subject, now):
            self._unknown.append(order)
            return []
        return self._begin(order, now)

    def finished(self) -> list[Prefetched]:
        """Prefetches that have ended since the last call."""
        done, self._done = self._done, []
        return done

    # ---- inside -----------------------------------------------------------------------------------------------

    def _look_up(self, subject: Subject, now: float) -> bool:
        """Add to the tree what the disk holds of a prompt, within the records of this turn. Returns whether that is all."""
        if not self._directory.archive.catalogue.pages:
            return True
        if not self._left:
            return False
        found = learn_some(self._directory, subject.salt, subject.prompt, now, self._left)
        self._left = max(0, self._left - max(1, found.records))
        return not found.more

    def _known(self, subject: Subject, since: float, now: float) -> bool:
        """True if all that the disk holds of it is known, or its lookup has taken too long."""
        return self._look_up(subject, now) or 0 < self._patience <= now - since

    def _pin_the_rest(self, now: float) -> None:
        """Pin the rest of prompts whose lookup is complete, in order of arrival."""
        for label, wanted in list(self._pins.items()):
            if now < wanted.until and not self._known(wanted.subject, wanted.since, now):
                return
            del self._pins[label]
            if now < wanted.until:
                pin(self._directory, label, wanted.subject.prompt, wanted.until)

    def _begin_known(self, now: float) -> list[Move]:
        """Begin the prefetches of prompts whose lookup is complete, in order of arrival."""
        moves: list[Move] = []
        while self._unknown and self._known(self._unknown[0].subject, self._unknown[0].since, now):
            moves += self._begin(replace(self._unknown.pop(0), since=now), now)
        return moves

    def _settle(self, now: float) -> list[Move]:
        """End prefetches whose copies have ended, and try those again that waited for room."""
        moves: list[Move] = []
        for order in list(self._orders):
            late = 0 < self._patience <= now - order.since
            if not late and order.open(self._directory):
                continue
            self._orders.remove(order)
            if order.waits and not late:
                moves += self._begin(replace(order, tries=order.tries - 1), now)
            else:
                self._end(order)
        return moves

    def _end(self, order: _Prefetch) -> None:
        if order.fetch.hold is not None:
            self._directory.release(order.fetch.hold)
        self._tell(_outcome(order))

    def _begin(self, order: _Prefetch, now: float) -> list[Move]:
        """Begin to load what is cached, or make room for it first. If there is nothing to wait for, the prefetch ends at once."""
        order.fetch = fetch(self._directory, self._path(order.subject), now, partly=order.tries == 0)
        moves = list(order.fetch.moves)
        if order.tries and order.fetch.status == Status.NO_ROOM:
            moves = demote(self._directory, order.fetch.lack)
            order.making_room = _going_down(self._directory)
            if not (order.making_room and order.fetch.lack):  # no room will come, or not enough
                order.tries = 0
                # making room may have joined nodes of the path: look it up again
                order.fetch = fetch(self._directory, self._path(order.subject), now)
                moves = list(order.fetch.moves)
        if moves or (order.tries and order.fetch.lack):
            self._orders.append(order)
        else:
            self._end(order)
        return moves

    def _tell(self, done: Prefetched) -> None:
        self.counts.prefetches[done.status] += 1
        self.counts.prefetched_tokens += done.host + done.disk
        self._done.append(done)

    def _path(self, subject: Subject) -> list[Node]:
        """The nodes of its path that are wholly known, from the top down."""
        found = self._directory.survey(subject.salt, subject.prompt)
        return [node for node in found.path if node.end <= found.matched]


def _going_down(directory: Directory) -> frozenset[int]:
    """Tickets of copies that read the device: their sources can be dropped when they end."""
    return frozenset(t for t, flight in directory.in_flight.items() if flight.lease.tier == Tier.DEVICE)


def _label(subject: Subject) -> Label:
    return subject.salt, hashlib.blake2b(subject.prompt.tobytes(), digest_size=16).hexdigest()


def _outcome(order: _Prefetch) -> Prefetched:
    begun = order.fetch
    tokens = resident(begun.tip) if begun.tip is not None else 0
    status = begun.status if tokens >= begun.tokens else Status.PARTIAL if tokens else Status.FAILED
    came = dict(begun.loads) if tokens >= begun.tokens else {}
    host, disk = came.get(Tier.HOST, 0), came.get(Tier.DISK, 0)
    return Prefetched(order.number, status, tokens, max(0, tokens - host - disk), host, disk)
