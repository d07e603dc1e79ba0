"""Who sends what when. Pure logic on times that it is told; the same for a simulated server and a real one.

`Lanes` keeps a fixed number of conversations going, closed loop: a turn goes out `think` seconds after the answer
before it ended. `Timeline` sends single requests at their recorded times, whatever the server does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from stepwell.base.errors import ConfigError
from stepwell.replay.trace import Conversation, Trace, Turn


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One turn to be sent at `time`.

    edition   how often this conversation has been played before: its text differs from one edition to the next
    priming   the turn before a lane's starting point, sent only to fill the cache: one token of answer is enough
    """

    time: float
    lane: int
    edition: int
    conversation: Conversation
    stream: int
    index: int
    priming: bool = False

    @property
    def turn(self) -> Turn:
        return self.conversation.streams[self.stream].turns[self.index]

    @property
    def id(self) -> str:
        return f"{self.conversation.id}.{self.edition}.{self.stream}.{self.index}"

    @property
    def session(self) -> str:
        return f"{self.conversation.id}.{self.edition}"

    @property
    def output(self) -> int:
        """Tokens to ask for; at least one."""
        return 1 if self.priming else max(1, self.turn.output)


class Source(Protocol):
    """What a replay asks for requests."""

    def due(self, now: float) -> list[TraceRequest]:
        """Requests to send by `now`, in order; each is handed out once."""

    def next_time(self) -> float | None:
        """When the next known request is due; None while all wait for answers, or nothing is left."""

    def finished(self, request: TraceRequest, now: float) -> None:
        """Its answer ended (or failed) at `now`."""


@dataclass(frozen=True, slots=True)
class LaneRules:
    """lanes       conversations going on at any time
    start        (low, high): each lane begins at a moment drawn evenly between these shares of its first
                 conversation's span
    think_cap    s; longer think times are cut to it
    max_prompt   tokens; turns with longer prompts are left out
    once         every conversation is played once; else they go round for ever
    """

    lanes: int = 56
    start: tuple[float, float] = (0.25, 0.75)
    think_cap: float = 300.0
    max_prompt: int = 256_000
    seed: int = 0
    once: bool = False

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ConfigError(f"--lanes must be at least 1, not {self.lanes}")
        if not 0 <= self.start[0] <= self.start[1] <= 1:
            raise ConfigError(f"--start must be two shares between 0 and 1, the lower first, not {self.start}")
        if self.think_cap < 0 or self.max_prompt < 1:
            raise ConfigError("--think-cap must not be negative and --max-prompt must be at least 1")


class Lanes:
    """A fixed number of conversations at a time.

    At time 0 each lane is somewhere inside a conversation: for every stream alive at the drawn moment, the last turn
    before it is sent at once (priming), and the stream goes on from the next turn. A sub-agent starts as long after
    its parent's turn was sent as recorded, and runs beside the parent. Once all streams of a conversation have ended
    the lane plays the next from its first turn. Lane k plays conversations k, k + lanes, k + 2·lanes, … of the
    shuffled list, whatever the timing, so two caches under the same rules are asked for the same conversations in the
    same lanes.
    """

    __slots__ = ("_agents", "_alive", "_conversations", "_heap", "_order", "_played", "_rules", "_serial")

    def __init__(self, conversations: Sequence[Conversation], rules: LaneRules) -> None:
        kept = [c.without_longer_than(rules.max_prompt) for c in conversations]
        self._conversations = [c for c in kept if c.requests]
        if not self._conversations:
            raise ConfigError(f"no prompt of this trace has at most {rules.max_prompt:,} tokens: raise --max-prompt")
        self._rules = rules
        self._order: list[int] = np.random.default_rng(rules.seed).permutation(len(self._conversations)).tolist()
        self._heap: list[tuple[float, int, TraceRequest]] = []
        self._serial = 0
        self._alive = [0] * rules.lanes
        self._played = [0] * rules.lanes
        self._agents: list[dict[tuple[int, int], list[tuple[int, float]]]] = [{} for _ in range(rules.lanes)]
        for lane in range(rules.lanes):
            self._begin(lane)

    def due(self, now: float) -> list[TraceRequest]:
        sent: list[TraceRequest] = []
        while self._heap and self._heap[0][0] <= now:
            _, _, request = heappop(self._heap)
            sent.append(request)
            for agent, offset in self._agents[request.lane].pop((request.stream, request.index), []):
                self._send(request, agent, 0, now + offset)
        return sent

    def next_time(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def finished(self, request: TraceRequest, now: float) -> None:
        stream = request.conversation.streams[request.stream]
        if request.index + 1 < len(stream.turns):
            think = min(stream.turns[request.index + 1].think, self._rules.think_cap)
            self._send(request, request.stream, request.index + 1, now + think)
            return
        self._alive[request.lane] -= 1
        if not self._alive[request.lane]:
            self._next(request.lane, now)

    def _send(self, like: TraceRequest, stream: int, index: int, time: float, priming: bool = False) -> None:
        request = TraceRequest(time, like.lane, like.edition, like.conversation, stream, index, priming)
        heappush(self._heap, (time, self._serial, request))
        self._serial += 1

    def _begin(self, lane: int) -> None:
        """Time 0: inside a conversation."""
        self._play(lane, 0.0, np.random.default_rng((self._rules.seed, lane)).uniform(*self._rules.start))

    def _next(self, lane: int, now: float) -> None:
        """The lane's next conversation, from its first turn."""
        self._played[lane] += 1
        self._play(lane, now, None)

    def _play(self, lane: int, now: float, share: float | None) -> None:
        place = lane + self._played[lane] * self._rules.lanes
        if self._rules.once and place >= len(self._order):
            return
        conversation = self._conversations[self._order[place % len(self._order)]]
        model = TraceRequest(now, lane, place // len(self._order), conversation, 0, 0)
        start = None if share is None else share * conversation.span
        done = [0 if start is None else _sent_before(conversation, i, start) for i in range(len(conversation.streams))]
        for i, stream in enumerate(conversation.streams):
            if done[i] == len(stream.turns):
                continue
            self._alive[lane] += 1
            if done[i]:
                self._send(model, i, done[i] - 1, now, priming=True)
            elif stream.parent is None:
                self._send(model, i, 0, now + min(stream.start - (start or 0.0), self._rules.think_cap))
            else:
                self._await_parent(model, i, done, start or 0.0)

    def _await_parent(self, model: TraceRequest, agent: int, done: Sequence[int], start: float) -> None:
        """Tie a sub-agent that has not begun to its parent's turn before it; to the start where that is past."""
        stream = model.conversation.streams[agent]
        assert stream.parent is not None
        parent = model.conversation.streams[stream.parent]
        anchor = parent.sent_by(stream.start) - 1
        past = done[stream.parent]
        if anchor < 0 or past == len(parent.turns) or anchor < past - 1:
            self._send(model, agent, 0, model.time + min(max(0.0, stream.start - start), self._rules.think_cap))
            return
        offset = min(stream.start - parent.start - parent.turns[anchor].time, self._rules.think_cap)
        self._agents[model.lane].setdefault((stream.parent, anchor), []).append((agent, offset))


def _sent_before(conversation: Conversation, stream: int, when: float) -> int:
    """Turns of the stream sent strictly before `when`."""
    told = conversation.streams[stream]
    return sum(told.start + turn.time < when for turn in told.turns)


class Timeline:
    """Every request at its recorded time (s since the trace's start); answers change nothing."""

    __slots__ = ("_next", "_requests")

    def __init__(self, trace: Trace, max_prompt: int = 256_000) -> None:
        found = [
            TraceRequest(stream.start + turn.time, 0, 0, conversation, i, j)
            for conversation in (c.without_longer_than(max_prompt) for c in trace.conversations)
            for i, stream in enumerate(conversation.streams)
            for j, turn in enumerate(stream.turns)
        ]
        if not found:
            raise ConfigError(f"no prompt of this trace has at most {max_prompt:,} tokens: raise --max-prompt")
        self._requests = sorted(found, key=lambda request: request.time)
        self._next = 0

    def due(self, now: float) -> list[TraceRequest]:
        first = self._next
        while self._next < len(self._requests) and self._requests[self._next].time <= now:
            self._next += 1
        return self._requests[first : self._next]

    def next_time(self) -> float | None:
        return self._requests[self._next].time if self._next < len(self._requests) else None

    def finished(self, request: TraceRequest, now: float) -> None:
        pass
