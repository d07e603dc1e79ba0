"""What callers say about the future: this will be asked for again, until then, by this conversation, or soon.

Hints move values and bytes, never an answer. Keeps and sessions are the cache's (`stepwell.cache.keeps`, `.sessions`); this is their
life beside requests: what a turn's end means for its session, and orders to prefetch, which hold no live slot and end as soon as
nothing of theirs is in flight. What the disk holds of a prompt is looked up a few records a turn, as for requests: an order begins
when all of that is known, and a pin then keeps all of it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.keeps import expire, follow_up, keep, keep_path, unkeep
from stepwell.cache.kept import Label
from stepwell.cache.moves import Move, Tier
from stepwell.cache.prefetch import Fetch, Status, fetch, resident
from stepwell.cache.recall import recall_some
from stepwell.cache.sessions import BRANCHES, MOST_SESSIONS, Key, Sessions, devalue
from stepwell.cache.shed import demote
from stepwell.cache.tree import Node
from stepwell.sched.queues import Queues
from stepwell.sched.request import Request

MOST_ORDERS = 64
"""Orders to prefetch that may be open at once; more are answered `busy`. As many pins may wait for the index."""
_TRIES = 4
_EARLY = 0.5
"""Share of the expected think time after which a session's tip is brought back."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What a pin or a prefetch is about: a prompt, or (None) the session of that id: all its branches, or the latest for a prefetch."""

    salt: str
    prompt: Ints | None = None
    session: str = ""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """The end of one order.

    tokens              where the device alone can resume now        known   whether there is such a session, or anything of the prompt
    device, host, disk  of these, tokens of KV that were there, or came from below
    """

    number: int
    known: bool
    status: Status
    tokens: int = 0
    device: int = 0
    host: int = 0
    disk: int = 0


@dataclass(slots=True)
class Counts:
    """Orders that ended, by what became of them; tokens that they brought."""

    prefetches: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    prefetched_tokens: int = 0
    early_prefetches: int = 0


@dataclass(slots=True)
class _Order:
    """`number` 0: the engine's own, of which nobody hears. `tries` are left to wait for room that copies downwards make; `making_room`
    are the tickets of those."""

    number: int
    subject: Subject
    fetch: Fetch
    since: float
    tries: int
    making_room: frozenset[int] = frozenset()

    @property
    def waits(self) -> bool:
        """Whether it has begun nothing yet, for want of room."""
        return self.fetch.lack > 0 and self.tries > 0

    def open(self, directory: Directory) -> bool:
        """Whether a copy is in flight that it waits for: not any that began later, of which there may be no end."""
        tickets = self.making_room if self.waits else {move.ticket for move in self.fetch.moves}
        return any(ticket in directory.in_flight for ticket in tickets)


@dataclass(frozen=True, slots=True, eq=False)
class _Pin:
    """A pin of a prompt of which the disk may hold more than is known; `since` it has been asked for."""

    subject: Subject
    until: float
    since: float


class Retention:
    """Owned by the loop.

    early     bring back what a session is likely to ask for while its caller thinks
    patience  s until an order is answered though its copies have not been reported, or until a hint does with what is known of its
              prompt; 0: for ever
    records   of an earlier process, at most, that the hints of a turn look up on disk together
    """

    def __init__(self, directory: Directory, early: bool = False, patience: float = 0.0, records: int = 64) -> None:
        self._directory = directory
        self._early = early
        self._patience = patience
        self._records = self._left = records
        self.sessions = Sessions()
        self.counts = Counts()
        self._orders: list[_Order] = []
        self._unknown: list[_Order] = []  # whose prompts are looked up on disk first
        self._pins: dict[Label, _Pin] = {}
        self._done: list[Prefetched] = []
        self._due: list[tuple[float, Key]] = []

    @property
    def busy(self) -> bool:
        """Whether an order is open, or a hint is asking the disk."""
        return bool(self._orders) or self.asking

    @property
    def asking(self) -> bool:
        """Whether a hint waits until the disk has been asked for all of its prompt."""
        return bool(self._unknown or self._pins)

    # ---- requests ---------------------------------------------------------------------------------------------

    def began(self, request: Request, now: float) -> None:
        """A request has come."""
        if request.session is not None:
            self.sessions.began((request.salt, request.session), now)

    def learn(self, queues: Queues, now: float) -> None:
        """Take in the turns that a step has ended."""
        ended, queues.ended = queues.ended, []
        for request, node in ended:
            if node.parent is not None:
                self.ended(request, node, now)

    def ended(self, request: Request, node: Node, now: float) -> None:
        """A request has been answered; `node` is where its published KV ended."""
        directory = self._directory
        key = (request.salt, request.session or "")
        if request.session is not None:
            session = self.sessions.ended(directory, key, node, now)
            if self._early and session is not None and session.think is not None and len(self._due) < MOST_SESSIONS:
                heapq.heappush(self._due, (now + _EARLY * session.think, key))
        if request.keep_s is not None:
            until = now + request.keep_s
            path = _path(node)
            keep_path(directory, ("turn", request.salt, request.id), path, until, rungs=2, pin=False)
            tip = directory.keeps.known.get(("turn", request.salt, request.id))
            if tip is not None:
                follow_up(directory, tip.tip, "turn", until)

    def turn(self, now: float) -> list[Move]:
        """Once a turn of the loop: end what is over, begin what is due. O(1) where there is nothing."""
        self._left = self._records
        expire(self._directory, now)
        moves = self._settle(now) if self._orders else []
        self._pin_the_rest(now)
        moves += self._begin_known(now)
        while self._due and self._due[0][0] <= now:
            moves += self._bring_back(heapq.heappop(self._due)[1], now)
        return moves

    # ---- callers ----------------------------------------------------------------------------------------------

    def pin(self, subject: Subject, until: float, now: float) -> int | None:
        """Keep what there is of it; tokens kept, of all branches of a session together. None: no such session.

        Of a prompt that is what is known by now; what else the disk holds is looked up in turns to come, and then kept as well.
        """
        directory, kept = self._directory, 0
        if subject.prompt is not None:
            return self._pin_prompt(_Pin(subject, until, now), subject.prompt)
        tips = self._tips(subject)
        if tips is None:
            return None
        for label, tip in zip(_of_session(subject), tips, strict=False):
            kept += keep_path(directory, label, _path(tip), until, rungs=2)
        return kept

    def unpin(self, subject: Subject) -> int:
        """End what `pin` began; tokens that were kept."""
        if subject.prompt is not None:
            label = _of_prompt(subject)
            self._pins.pop(label, None)
            return unkeep(self._directory, label)
        return sum(unkeep(self._directory, label) for label in _of_session(subject))

    def end_session(self, salt: str, session: str) -> int | None:
        """Nobody will go on from it: what it alone has led to goes first. Pages of that; None: no such session."""
        known = self.sessions.forget((salt, session))
        if known is None:
            return None
        self.unpin(Subject(salt, None, session))
        return sum(devalue(self._directory, tip) for tip in known.tips())

    def prefetch(self, number: int, subject: Subject, now: float) -> list[Move]:
        """Begin to bring it to the device; `finished` tells of the end."""
        if len(self._orders) + len(self._unknown) >= MOST_ORDERS:
            self._tell(Prefetched(number, True, Status.BUSY))
            return []
        order = _Order(number, subject, Fetch(Status.UNKNOWN), now, _TRIES)
        if not self._look_up(subject, now):
            self._unknown.append(order)
            return []
        return self._begin(order, now)

    def finished(self) -> list[Prefetched]:
        """Orders that have ended since the last call."""
        done, self._done = self._done, []
        return done

    # ---- inside -----------------------------------------------------------------------------------------------

    def _look_up(self, subject: Subject, now: float) -> bool:
        """Let the tree know what the disk holds of a prompt, as far as this turn may look; whether that is all."""
        if subject.prompt is None or not self._directory.archive.catalogue.pages:
            return True
        if not self._left:
            return False
        found = recall_some(self._directory, subject.salt, subject.prompt, now, self._left)
        self._left = max(0, self._left - max(1, found.records))
        return not found.more

    def _known(self, subject: Subject, since: float, now: float) -> bool:
        """Whether all that the disk holds of it is known, or has been asked for long enough."""
        return self._look_up(subject, now) or 0 < self._patience <= now - since

    def _pin_prompt(self, pin: _Pin, prompt: Ints) -> int:
        label = _of_prompt(pin.subject)
        self._pins.pop(label, None)
        if not self._look_up(pin.subject, pin.since) and len(self._pins) < MOST_ORDERS:
            self._pins[label] = pin
        return keep(self._directory, label, pin.subject.salt, prompt, pin.until)

    def _pin_the_rest(self, now: float) -> None:
        """Keep all there is of the prompts that are known by now, in the order in which pins of them came."""
        for label, pin in list(self._pins.items()):
            if now < pin.until and not self._known(pin.subject, pin.since, now):
                return
            del self._pins[label]
            if now < pin.until and pin.subject.prompt is not None:
                keep(self._directory, label, pin.subject.salt, pin.subject.prompt, pin.until)

    def _begin_known(self, now: float) -> list[Move]:
        """Begin the orders whose prompts are known by now, in the order in which they came."""
        moves: list[Move] = []
        while self._unknown and self._known(self._unknown[0].subject, self._unknown[0].since, now):
            moves += self._begin(replace(self._unknown.pop(0), since=now), now)
        return moves

    def _settle(self, now: float) -> list[Move]:
        """End the orders that nothing moves for any more, or try again those that waited for room."""
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

    def _end(self, order: _Order) -> None:
        if order.fetch.hold is not None:
            self._directory.release(order.fetch.hold)
        self._tell(_outcome(order))

    def _begin(self, order: _Order, now: float) -> list[Move]:
        """Load what is there, or make room for it first; told at once where there is nothing to wait for."""
        path = self._path(order.subject)
        if path is None:
            self._tell(Prefetched(order.number, False, Status.UNKNOWN))
            return []
        order.fetch = fetch(self._directory, path, now, partly=order.tries == 0)
        moves = list(order.fetch.moves)
        if order.tries and order.fetch.status == Status.NO_ROOM:
            moves = demote(self._directory, order.fetch.lack)
            order.making_room = _going_down(self._directory)
            if not (order.making_room and order.fetch.lack):  # nothing comes, or it would not be enough
                order.tries = 0
                path = self._path(order.subject)  # what went to make room may have let nodes of it join
                order.fetch = fetch(self._directory, path or [], now)
                moves = list(order.fetch.moves)
        if moves or (order.tries and order.fetch.lack):
            self._orders.append(order)
        else:
            self._end(order)
        return moves

    def _tell(self, done: Prefetched) -> None:
        self.counts.prefetches[done.status] += 1
        self.counts.prefetched_tokens += done.host + done.disk
        if done.number:
            self._done.append(done)

    def _bring_back(self, key: Key, now: float) -> list[Move]:
        """Load the tip of a session that is still thinking, if it is not on the device."""
        session = self.sessions.find(key)
        if session is None or session.ended is None or len(self._orders) >= MOST_ORDERS:
            return []
        tips = session.tips()[:1]
        if not tips or resident(tips[0]) == tips[0].end:
            return []
        self.counts.early_prefetches += 1
        return self._begin(_Order(0, Subject(key[0], None, key[1]), Fetch(Status.UNKNOWN), now, 0), now)

    def _tips(self, subject: Subject) -> list[Node] | None:
        session = self.sessions.find((subject.salt, subject.session))
        return None if session is None else session.tips()

    def _path(self, subject: Subject) -> list[Node] | None:
        """The nodes that are known of it; None where there is no such session."""
        if subject.prompt is None:
            tips = self._tips(subject)
            return None if tips is None else _path(tips[0]) if tips else []
        found = self._directory.survey(subject.salt, subject.prompt)
        return [node for node in found.path if node.end <= found.matched]


def _going_down(directory: Directory) -> frozenset[int]:
    """Tickets of the copies that read the device: what they have read may go then."""
    return frozenset(t for t, flight in directory.in_flight.items() if flight.lease.tier == Tier.DEVICE)


def _path(tip: Node) -> list[Node]:
    """The nodes to `tip` from the top of its tree down."""
    return [node for node in tip.up() if node.parent is not None][::-1]


def _of_prompt(subject: Subject) -> Label:
    assert subject.prompt is not None
    return "prompt", subject.salt, hashlib.blake2b(subject.prompt.tobytes(), digest_size=16).hexdigest()


def _of_session(subject: Subject) -> Iterator[Label]:
    """One label for each branch there can be."""
    return (("session", subject.salt, f"{branch}:{subject.session}") for branch in range(BRANCHES))


def _outcome(order: _Order) -> Prefetched:
    begun = order.fetch
    tokens = resident(begun.tip) if begun.tip is not None else 0
    status = begun.status if tokens >= begun.tokens else Status.PARTIAL if tokens else Status.FAILED
    came = dict(begun.loads) if tokens >= begun.tokens else {}
    host, disk = came.get(Tier.HOST, 0), came.get(Tier.DISK, 0)
    return Prefetched(order.number, True, status, tokens, max(0, tokens - host - disk), host, disk)
