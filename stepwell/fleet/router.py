"""Routing by the expected time to the first token.

Each replica says how deep it could resume a prompt, what the loads and the rest of the prompt would take there, and what waits before it
(`stepwell.sched.outlook`). The price of a replica is the time that the prompt would wait, and the time for which it would hold up others:

    price = queue + (1 + burden) × work         work = loads + prefill of this prompt

A session stays where it is unless another replica is cheaper by more than a margin. What has no session, or a new one, goes to one of the
cheap replicas: the one that has computed the fewest prompt tokens of late, since each of them has displaced something in its cache.
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
    margin_s         s by which another replica must be cheaper before a session moves there; margin_share: and by this share of its price
    alike_s          s within which replicas count as equally cheap; alike_share: and of the lowest price
    asked            replicas that are asked about one prompt, at most
    patience         questions in a row that a session's replica may leave unanswered before it is judged by its load
    shared         share of a prompt that a replica must have for the session to be at home there: a sub-agent often shares nothing
    half_life_s      s after which a computed token counts half
    sessions         sessions that are remembered; homes: and replicas for each
    """

    burden: float = 2.0
    margin_s: float = 5.0
    margin_share: float = 0.5
    alike_s: float = 5.0
    alike_share: float = 1.0
    asked: int = 8
    patience: int = 3
    shared: float = 0.1
    half_life_s: float = 7200.0
    sessions: int = 100_000
    homes: int = 6


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
    """`homes`: replicas that had its requests, the latest first. `tokens` of its last prompt."""

    homes: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class _Computed:
    """Prompt tokens that a replica has computed, as they count at the time `at` (s)."""

    tokens: float = 0.0
    at: float = 0.0


@dataclass(slots=True)
class Router:
    """Owns what is remembered of sessions and replicas. Single-threaded.

    _sessions  the one seen longest ago first        _silent  questions in a row that a replica has left unanswered
    """

    rules: Rules = field(default_factory=Rules)
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _computed: dict[str, _Computed] = field(default_factory=dict)
    _silent: dict[str, int] = field(default_factory=dict)

    def whom_to_ask(self, session: str, loads: Mapping[str, int]) -> tuple[str, ...]:
        """Replicas to ask about a prompt of `session` ("" for none): those that had it, then those that answer and have the least to
        do. `loads` names the replicas that take requests, and how many each has under way. O(replicas × log(replicas))."""
        known = self._sessions.get(session)
        first = [name for name in known.homes if name in loads] if known is not None else []
        others = sorted(
            (name for name in loads if name not in first),
            key=lambda name: (self._silent.get(name, 0), loads[name], name),
        )
        return tuple([*first, *others][: self.rules.asked])

    def whom_to_ask_next(self, session: str, asked: Sequence[str], told: Mapping[str, Outlook]) -> tuple[str, ...]:
        """The rest of `asked` (see `whom_to_ask`), once the first of them has answered, or is late. Nobody where the session is at home
        there and stays."""
        known, first = self._sessions.get(session), asked[0]
        if known is not None and first in known.homes and first in told and self.stays(told[first]):
            return ()
        return tuple(asked[1:])

    def choose(self, session: str, tokens: int, views: Sequence[View], now: float) -> Choice:
        """Where a prompt of `tokens` tokens goes. `views`: each replica that takes requests, once; at least one. `now` in s of any clock
        that does not go back. The session's home is the chosen replica from now on."""
        assert views, "whoever routes has a replica to route to"
        by_name = {view.replica: view for view in views}
        known = self._sessions.get(session) if session else None
        home = None if known is None else self._home(known, by_name)
        ranked = self._ranked(views, now)
        if home is not None and home.outlook is None:
            first, why = home, Why.SILENT_HOME
        elif ranked[0].outlook is None:
            first, why = ranked[0], Why.LOAD
        elif (
            home is not None
            and home.outlook is not None
            and not self._pays(self.price(home.outlook), self.price(ranked[0].outlook))
        ):
            first, why = home, Why.HOME
        else:
            first, why = ranked[0], Why.PLACED if home is None else Why.MOVED
        new = tokens if known is None else max(0, tokens - known.tokens)
        self._count(first.replica, new if first.outlook is None else first.outlook.tokens - first.outlook.boundary, now)
        if session:
            self._settle(session, first.replica, tokens)
        return Choice(why, (first.replica, *(v.replica for v in ranked if v is not first)))

    def heard(self, asked: Collection[str], answered: Collection[str]) -> None:
        """Which of the replicas that were asked about a prompt answered in time."""
        for name in asked:
            if name in answered:
                self._silent.pop(name, None)
            else:
                self._silent[name] = self._silent.get(name, 0) + 1

    def forget_replica(self, replica: str) -> None:
        """Drop what is remembered of a replica that has left. Its sessions find a new home as they come."""
        self._computed.pop(replica, None)
        self._silent.pop(replica, None)

    def computed(self, replica: str, now: float) -> float:
        """Prompt tokens that it has computed of late: a token counts half after `Rules.half_life_s`."""
        known = self._computed.get(replica)
        return 0.0 if known is None else known.tokens * 2.0 ** ((known.at - now) / self.rules.half_life_s)

    def price(self, outlook: Outlook) -> float:
        """Seconds of waiting that a prompt costs there: its own, and that of whoever comes behind it."""
        return outlook.queue_s + (1 + self.rules.burden) * outlook.work_s

    def stays(self, home: Outlook) -> bool:
        """Whether a session stays at its home whatever other replicas expect: nobody else needs to be asked."""
        return home.boundary >= self.rules.shared * home.tokens and not self._pays(self.price(home), 0.0)

    def session(self, name: str) -> Session | None:
        """What is remembered of a session."""
        return self._sessions.get(name)

    def _home(self, known: Session, views: Mapping[str, View]) -> View | None:
        """The session's latest replica, if it did not answer in time, and has not been silent for long; else, of the replicas that have
        enough of the prompt, the cheapest."""
        latest = next((views[name] for name in known.homes if name in views), None)
        if latest is not None and latest.outlook is None and self._silent.get(latest.replica, 0) <= self.rules.patience:
            return latest
        told = [(view, view.outlook) for view in views.values() if view.outlook is not None]
        fit = [(self.price(o), v.replica, v) for v, o in told if o.boundary >= self.rules.shared * o.tokens]
        return min(fit, key=lambda one: one[:2])[2] if fit else None

    def _pays(self, home: float, best: float) -> bool:
        """Whether a session moves from a replica of one price to one of another."""
        return home - best > self.rules.margin_s + self.rules.margin_share * home

    def _ranked(self, views: Sequence[View], now: float) -> list[View]:
        """The best first: the cheap ones by what they have computed of late, the dear ones by price; then the silent by load."""
        prices = {view.replica: self.price(view.outlook) for view in views if view.outlook is not None}
        alike = min(prices.values(), default=0.0) * (1 + self.rules.alike_share) + self.rules.alike_s

        def place(view: View) -> tuple[int, float, float, str]:
            computed = self.computed(view.replica, now)
            price = prices.get(view.replica)
            if price is None:
                return 2, view.load, computed, view.replica
            return (0, computed, view.load, view.replica) if price <= alike else (1, price, computed, view.replica)

        return sorted(views, key=place)

    def _count(self, replica: str, tokens: int, now: float) -> None:
        self._computed[replica] = _Computed(self.computed(replica, now) + tokens, now)

    def _settle(self, session: str, replica: str, tokens: int) -> None:
        """The session is at `replica` from now on. `tokens` 0: nobody has told how long its prompt is."""
        known = self._sessions.pop(session, None)
        if not tokens and known is not None:
            tokens = known.tokens
        others = () if known is None else tuple(name for name in known.homes if name != replica)
        self._sessions[session] = Session((replica, *others)[: self.rules.homes], tokens)
        if len(self._sessions) > self.rules.sessions:
            self._sessions.popitem(last=False)
