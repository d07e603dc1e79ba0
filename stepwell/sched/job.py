"""A request in each state of its life.

Waiting ──▶ Parked ──▶ Running ──▶ (finished)         Waiting ──▶ Running where nothing is to be loaded
   ▲           │          │
   │           ▼          │                           aborted while its load is in flight: Draining, then gone
   └───────────┼──────────┘  preempted                     given up for want of a report: Waiting, its load Draining
            Draining
                                                           ended while a launched step names it: Queues.leaving, then gone
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.account import Lease
from stepwell.cache.reuse.admission import Loading, Tried
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import Node, Rung, RungKind
from stepwell.sched.board import Board
from stepwell.sched.request import Request
from stepwell.sched.step import Carry, StateStart


class KnownTokens:
    """Prompt and answer so far: an int32 array that grows at the end.

    tail  the newest tokens: a step appends what it drew; they are moved into the array when it is next read
    """

    __slots__ = ("_buffer", "_count", "tail")

    def __init__(self, prompt: Ints, room: int = 64) -> None:
        self._count = len(prompt)
        self._buffer: Ints = np.empty(self._count + room, np.int32)
        self._buffer[: self._count] = prompt
        self.tail: list[int] = []

    def __len__(self) -> int:
        return self._count + len(self.tail)

    @property
    def count(self) -> int:
        return self._count + len(self.tail)

    @property
    def last(self) -> int:
        """The newest one."""
        return self.tail[-1] if self.tail else self._buffer.item(self._count - 1)

    @property
    def view(self) -> Ints:
        """All tokens; valid until they are next read after growing."""
        if self.tail:
            self._settle()
        return self._buffer[: self._count]

    def extend(self, tokens: tuple[int, ...]) -> None:
        self.tail.extend(tokens)
        if len(self.tail) > MOST_UNREAD:
            self._settle()

    def _settle(self) -> None:
        end = self.count
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer[: self._count], np.empty(end, np.int32)])
        self._buffer[self._count : end] = self.tail
        self._count = end
        self.tail.clear()


MOST_UNREAD = 64
"""Most tokens in `KnownTokens.tail`."""


@dataclass(frozen=True, slots=True)
class AuditedResume:
    """How a request that will be audited was resumed, and `Directory.condemnations` at that time."""

    outcome: AdmissionOutcome
    condemnations: int


@dataclass(slots=True, eq=False)
class Job:
    """What a request keeps through all its states.

    order     place in the queue, lower first (`stepwell.sched.queues`)     limit    most tokens that it may have
    root      number of its salt      starts   number of admissions so far
    internal  a request of the engine itself (an audit): no events, and not counted as an admission
    watched   set if the logits of its first token are to be kept for an audit
    resumed   outcome of its first admission
    given_legs  legs of loads that were given up, as in `AdmissionOutcome.legs`
    given_up  (failed leg, boundary) of a load that was not reported in time
    waits     number of leaders that it has waited for     alone  its boundary if it had not waited for the first of them
    """

    request: Request
    order: tuple[float, int]
    tokens: KnownTokens
    limit: int
    root: int
    starts: int = 0
    internal: bool = False
    watched: AuditedResume | None = None
    given_up: tuple[Reason, int] | None = None
    given_legs: Tried = ()
    resumed: AdmissionOutcome | None = None
    waits: int = 0
    alone: int = 0
    looks_back: bool = field(init=False)

    def __post_init__(self) -> None:
        self.looks_back = self.request.params.looks_back

    @property
    def generated(self) -> int:
        return self.tokens.count - len(self.request.prompt)

    @property
    def answer(self) -> Ints:
        """Tokens of the answer so far; valid until the next one is added."""
        return self.tokens.view[len(self.request.prompt) :]

    @property
    def audited(self) -> bool:
        """True if the logits of its first token are to be kept."""
        return self.internal or self.watched is not None


@dataclass(frozen=True, slots=True, eq=False)
class Suspended:
    """What a preempted request keeps: the live state after `computed` tokens in `slot`, and `pages` with the KV past the end of `node`,
    where its last whole block ends (see `stepwell.sched.suspend`). It must not be used once `Directory.condemnations` differs from
    `condemnations`: it may have been computed from condemned bytes."""

    slot: int
    computed: int
    pages: Ints
    node: Node
    condemnations: int


@dataclass(frozen=True, slots=True)
class Following:
    """A follower waits until the owner of `table` has computed `position` tokens (see `stepwell.sched.coalesce`)."""

    table: BlockTable
    position: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Holds nothing but what is left from when it was preempted (`suspended`). One that is `following` another may be overtaken."""

    job: Job
    suspended: Suspended | None = None
    following: Following | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """Holds a live slot and all that its plan leased. Its load is in flight; the last report of it came at `heard`."""

    job: Job
    slot: int
    loading: Loading
    heard: float = 0.0
    suspended: Suspended | None = None


@dataclass(frozen=True, slots=True)
class Draining:
    """A load that no request waits for since `since`. Its copies may still write its pages and its live slot."""

    slot: int
    loading: Loading
    since: float = 0.0


@dataclass(slots=True, eq=False)
class Running:
    """Computes. The state in `slot` has folded `computed` tokens once `start` has been applied.

        0 ─────────────── computed ──────────── launched ────────── drawn
        │ collected steps │ in launched steps  │ for steps to come │

    computed  tokens of collected steps                  launched  tokens of collected and launched steps
    drawn     tokens that are known, or being drawn by a launched step
    board     holds the positions: the entries of `slot` belong to this request
    shared    tokens whose pages are never written     rungs     prompt rungs still to be left, ascending
    image     lease on what `start` reads              rolling   its last rolling rung, which the next one replaces
    start     state at the start of the next step      given     tokens that were known when it began to run
    guessed   its last launched step drafts behind what it draws
    guessing  its launched step has drafts in it: how many are right is known once it is collected
    """

    job: Job
    slot: int
    board: Board
    table: BlockTable
    path: Lease
    image: Lease | None
    shared: int
    start: StateStart
    rungs: tuple[tuple[int, RungKind], ...]
    rolling: Rung | None = None
    guessed: bool = False
    guessing: bool = False
    given: int = field(init=False)

    def __post_init__(self) -> None:
        self.given = self.job.tokens.count

    @property
    def computed(self) -> int:
        return self.board.computed.item(self.slot)

    @computed.setter
    def computed(self, tokens: int) -> None:
        self.board.computed[self.slot] = tokens

    @property
    def launched(self) -> int:
        return self.board.launched.item(self.slot)

    @launched.setter
    def launched(self, tokens: int) -> None:
        self.board.launched[self.slot] = tokens

    @property
    def drawn(self) -> int:
        return max(self.given, self.launched + 1)

    @property
    def remaining(self) -> int:
        """Tokens, known or being drawn, that are in no step yet; 1: the next step decodes."""
        return max(1, self.given - self.launched)

    @property
    def goes_on(self) -> bool:
        """True if its next step can be a plain decode: the token is not the prompt's, its state is in the slot, and the page is its own.
        After a preemption the page may be shared with a request that computed the same meanwhile; a decode would write it."""
        own = self.launched >= max(self.shared, len(self.job.request.prompt))
        return own and isinstance(self.start, Carry) and self.remaining == 1

    @property
    def uncollected(self) -> int:
        """Known tokens that are not computed yet; more than 1 in a prompt."""
        return self.job.tokens.count - self.computed

    @property
    def in_flight(self) -> bool:
        """True if a launched step names it."""
        return self.launched > self.computed
