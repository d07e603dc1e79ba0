"""What a conversation is: streams of turns, each turn a prompt told as block ids.

A trace does not hold text. It names each block of a prompt by an id; equal ids mean equal tokens after equal
prefixes. Ids are local to a conversation, its sub-agents included.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints

Run: TypeAlias = tuple[int, int]
"""(first id, count): the ids first … first + count − 1, in order."""

MAX_TOKENS = 2**26
"""Tokens of one prompt or answer."""
MAX_BLOCK_ID = 2**24
MAX_BLOCK = 2**16
MAX_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a stream.

    time    s since the stream's start, as recorded
    prompt  tokens sent; output: tokens answered
    think   s between the end of the stream's previous answer and this request
    runs    ids of the prompt's blocks. They cover `prompt` rounded down or up to whole blocks: where down, the tokens
            past the last block are this request's alone; where up, the last block is cut short
    body    the request as it was sent (JSON), where the trace is a log of such
    """

    time: float
    prompt: int
    output: int
    think: float
    runs: tuple[Run, ...]
    body: bytes | None = None

    @property
    def blocks(self) -> int:
        """How many blocks the runs name."""
        return sum(count for _, count in self.runs)

    def ids(self) -> Ints:
        """Block ids, int32 [blocks]."""
        if len(self.runs) == 1:
            first, count = self.runs[0]
            return np.arange(first, first + count, dtype=np.int32)
        if not self.runs:
            return np.empty(0, np.int32)
        return np.concatenate([np.arange(first, first + count, dtype=np.int32) for first, count in self.runs])


@dataclass(frozen=True, slots=True)
class Stream:
    """Turns that follow one another: the conversation itself, or one sub-agent of it.

    start   s since the conversation's start; parent: index of the stream that this sub-agent belongs to, None for the
            root and for requests that came by themselves
    """

    start: float
    turns: tuple[Turn, ...]
    tool_tokens: int = 0
    system_tokens: int = 0
    parent: int | None = None

    def sent_by(self, when: float) -> int:
        """How many turns had been sent at `when` (s since the conversation's start), one sent just then included."""
        return bisect_right(self.turns, when - self.start, key=lambda turn: turn.time)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A root stream (the first) and its sub-agents, over one set of block ids. `block`: tokens in a block."""

    id: str
    block: int
    streams: tuple[Stream, ...]

    @property
    def requests(self) -> int:
        return sum(len(stream.turns) for stream in self.streams)

    @property
    def span(self) -> float:
        """Seconds from the conversation's start to its last request."""
        return max((s.start + s.turns[-1].time for s in self.streams if s.turns), default=0.0)

    def in_time_order(self) -> list[tuple[int, int]]:
        """(stream, turn) of every request, as they were sent."""
        order = [(s.start + t.time, i, j) for i, s in enumerate(self.streams) for j, t in enumerate(s.turns)]
        return [(i, j) for _, i, j in sorted(order)]

    def without_longer_than(self, tokens: int) -> Conversation:
        """The same without the turns whose prompts are longer than `tokens`; streams may end up empty."""
        streams = (replace(s, turns=tuple(t for t in s.turns if t.prompt <= tokens)) for s in self.streams)
        return replace(self, streams=tuple(streams))


@dataclass(frozen=True, slots=True)
class Trace:
    """What was read. `open_loop`: requests come at their recorded times, answered or not."""

    conversations: tuple[Conversation, ...]
    open_loop: bool = False

    @property
    def requests(self) -> int:
        return sum(conversation.requests for conversation in self.conversations)


def runs_of(ids: npt.NDArray[np.int64]) -> tuple[Run, ...]:
    """`ids` as runs of ids that follow each other."""
    starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
    counts = np.diff(starts, append=len(ids))
    return tuple(zip(ids[starts].tolist(), counts.tolist(), strict=True))
