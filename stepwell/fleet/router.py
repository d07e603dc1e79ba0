"""Routing by the expected time to the first token.

Each replica says how deep it could resume a prompt, what the loads and the rest of the prompt would take there, and what waits before it
(`stepwell.sched.outlook`). The price of a replica is the time that the prompt would wait, and the time for which it would hold up others:

    price = queue + (1 + burden) × work         work = loads + prefill of this prompt

A session stays where it is unless another replica is cheaper by more than a margin. Who has no session, or a new one, goes to one of the
cheapest: the one with the least of other sessions in its cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from stepwell.sched.outlook import Outlook


class Why(Enum):
    """Why a replica was chosen."""

    HOME = "home"
    """The session is there."""
    SILENT_HOME = "silent_home"
    """The session is there, and the replica did not answer in time."""
    MOVED = "moved"
    """It is cheaper there than at home by more than the margin."""
    PLACED = "placed"
    """No replica is the session's: it is one of the cheapest."""
    LOAD = "load"
    """No replica answered in time: it has the least to do."""


@dataclass(frozen=True, slots=True)
class Rules:
    """burden        what a second of work costs those behind it, in seconds of waiting
    margin_s         s by which another replica must be cheaper before a session moves there; margin_share: and of the home's price
    alike_s          s within which replicas count as equally cheap; alike_share: and of the lowest price
    asked            replicas that are asked about one prompt, at most
    patience         questions in a row that a session's replica may leave unanswered before it is judged by its load
    remembered_s     s for which a session counts as being in its replica's cache
    sessions         sessions that are remembered; homes: and replicas for each
    """

    burden: float = 1.0
    margin_s: float = 0.25
    margin_share: float = 0.2
    alike_s: float = 0.1
    alike_share: float = 0.1
    asked: int = 8
    patience: int = 3
    remembered_s: float = 600.0
    sessions: int = 100_000
    homes: int = 3


@dataclass(frozen=True, slots=True)
class View:
    """What is known of a replica. `load`: requests under way there; `outlook` None: it did not answer in time, or was not asked."""

    replica: str
    load: int
    outlook: Outlook | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """`order` begins with the chosen replica and goes on with those to try if it refuses."""

    why: Why
    order: tuple[str, ...]

    @property
    def replica(self) -> str:
        return self.order[0]


@dataclass(frozen=True, slots=True)
class Session:
    """`homes`: replicas that had its requests, the latest first. `tokens` of its longest recent prompt there; `seen`: when its last one
    came, in s."""

    homes: tuple[str, ...]
    tokens: int
    seen: float


@dataclass(slots=True)
class Router:
    """Owns what is remembered of sessions. Single-threaded.

    held       tokens of the sessions that are in each replica's cache, by their last prompts
    _sessions  the one seen longest ago first        _recent  those of them that `held` counts, in the same order
    _silent    questions in a row that a replica has left unanswered
    """

    rules: Rules = field(default_factory=Rules)
    held: dict[str, int] = field(default_factory=dict)
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _recent: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _silent: dict[str, int] = field(default_factory=dict)

    def whom_to_ask(self, session: str, loads: Mapping[str, int]) -> tuple[str, ...]:
        """Replicas to ask about a prompt of `session` ("" for none): those that had it, then those with the least to do. `loads` names
        the replicas that take requests, and how many each has under way. O(replicas), more than `Rules.asked` of them sorted."""
        if len(loads) <= self.rules.asked:
            return tuple(loads)
        known = self._sessions.get(session)
        first = [name for name in known.homes if name in loads] if known is not None else []
        others = sorted((n for n in loads if n not in first), key=lambda n: (loads[n], self.held.get(n, 0), n))
        return tuple([*first, *others][: self.rules.asked])

    def choose(self, session: str, tokens: int, views: Sequence[View], now: float) -> Choice:
        """Where a prompt of `tokens` tokens goes. `views`: each replica that takes requests, once; at least one. `now` in s of any clock
        that does not go back. The session's home is the chosen replica from now on."""
        assert views, "whoever routes has a replica to route to"
        self._forget(now)
        by_name = {view.replica: view for view in views}
        known = self._sessions.get(session) if session else None
        home = next((by_name[name] for name in known.homes if name in by_name), None) if known is not None else None
        ranked = self._ranked(views)
        if home is not None and home.outlook is None and self._silent.get(home.replica, 0) <= self.rules.patience:
            first, why = home, Why.SILENT_HOME
        elif ranked[0].outlook is None:
            first, why = ranked[0], Why.LOAD
        elif home is not None and home.outlook is not None and not self._pays(home.outlook, ranked[0].outlook):
            first, why = home, Why.HOME
        else:
            first, why = ranked[0], Why.PLACED if home is None else Why.MOVED
        if session:
            self._settle(session, first.replica, tokens, now)
        return Choice(why, (first.replica, *(v.replica for v in ranked if v is not first)))

    def heard(self, asked: Collection[str], answered: Collection[str]) -> None:
        """Which of the replicas that were asked about a prompt answered in time."""
        for name in asked:
            if name in answered:
                self._silent.pop(name, None)
            else:
                self._silent[name] = self._silent.get(name, 0) + 1

    def forget_replica(self, replica: str) -> None:
        """It is gone, and what it cached with it. Its sessions find a new home as they come. O(recent sessions)."""
        for session in [name for name in self._recent if self._sessions[name].homes[0] == replica]:
            self._leave(session)
        self.held.pop(replica, None)
        self._silent.pop(replica, None)

    def price(self, outlook: Outlook) -> float:
        """Seconds of waiting that a prompt costs there: its own, and that of whoever comes behind it."""
        return outlook.queue_s + (1 + self.rules.burden) * outlook.work_s

    def session(self, name: str) -> Session | None:
        """What is remembered of a session."""
        return self._sessions.get(name)

    def _pays(self, home: Outlook, best: Outlook) -> bool:
        """Whether a session moves."""
        there = self.price(home)
        return there - self.price(best) > self.rules.margin_s + self.rules.margin_share * there

    def _ranked(self, views: Sequence[View]) -> list[View]:
        """The best first: replicas that answered by price, those about equally cheap by what they hold; then the silent by load."""
        prices = {view.replica: self.price(view.outlook) for view in views if view.outlook is not None}
        alike = min(prices.values(), default=0.0) * (1 + self.rules.alike_share) + self.rules.alike_s

        def place(view: View) -> tuple[int, float, int, str]:
            held = self.held.get(view.replica, 0)
            price = prices.get(view.replica)
            if price is None:
                return 2, view.load, held, view.replica
            return (0, held, view.load, view.replica) if price <= alike else (1, price, held, view.replica)

        return sorted(views, key=place)

    def _settle(self, session: str, replica: str, tokens: int, now: float) -> None:
        """The session is at `replica` from now on."""
        self._leave(session)
        known = self._sessions.pop(session, None)
        others = () if known is None else tuple(name for name in known.homes if name != replica)
        if known is not None and known.homes[0] == replica:  # sub-agents send shorter prompts in between
            tokens = max(tokens, known.tokens * 7 // 8)
        self._sessions[session] = Session((replica, *others)[: self.rules.homes], tokens, now)
        self._recent[session] = None
        self.held[replica] = self.held.get(replica, 0) + tokens
        if len(self._sessions) > self.rules.sessions:
            oldest = next(iter(self._sessions))
            self._leave(oldest)
            del self._sessions[oldest]

    def _leave(self, session: str) -> None:
        """What the session held counts no longer."""
        if session in self._recent:
            del self._recent[session]
            known = self._sessions[session]
            self.held[known.homes[0]] -= known.tokens

    def _forget(self, now: float) -> None:
        """Sessions that have not been seen for long hold nothing. O(those that have gone)."""
        while self._recent:
            oldest = next(iter(self._recent))
            if now - self._sessions[oldest].seen <= self.rules.remembered_s:
                return
            self._leave(oldest)
