"""Agent conversations made up to the shape of real ones, for demos and tests that need no download.

The defaults follow public traces of coding agents: a long shared head of system text and tools, a median turn that
adds 727 tokens with a heavy tail, answers of 216 tokens, think times of ten seconds that may become minutes, 8 % of
turns that leave the path (a rewound tail, or a compaction to the head), and now and then sub-agents with a head of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from stepwell.base.errors import ConfigError
from stepwell.replay.trace import Conversation, Run, Stream, Trace, Turn

_ANSWER_TOKENS_PER_S = 60.0
"""How fast the recorded server is made to have answered; it only spaces the recorded times."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What conversations look like; pairs are the median of a log-normal law and the sigma of its logarithm.

    scale       multiplies every token count: 0.05 gives prompts of 1–6k
    head        (low, high) tokens of system text and tools
    history     tokens that a conversation begins with past its head: many are resumed ones
    growth      tokens that a turn adds
    output      tokens of an answer
    think       s
    turns       requests of a conversation
    branch      share of turns that leave the path: `compact` of them fall back to the head, the others lose some tail
    agents      chance of a turn to start `fan_out` sub-agents at once, each of about `agent_turns` requests
    max_prompt  tokens, before scaling; a longer prompt is compacted
    """

    scale: float = 1.0
    block: int = 64
    head: tuple[int, int] = (8_000, 20_000)
    history: tuple[float, float] = (8_000.0, 2.2)
    growth: tuple[float, float] = (727.0, 1.3)
    output: tuple[float, float] = (216.0, 1.1)
    think: tuple[float, float] = (10.0, 1.6)
    turns: tuple[float, float] = (46.0, 0.9)
    branch: float = 0.08
    compact: float = 0.1
    agents: float = 0.005
    agent_turns: int = 10
    fan_out: int = 1
    max_prompt: int = 200_000

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.block < 1 or self.head[0] < 1:
            raise ConfigError("a synthetic trace needs a scale above 0, blocks of at least 1 token, and a head")
        if not 0 <= self.agents <= 1 or self.fan_out < 1:
            raise ConfigError("--agents must be a chance from 0 to 1, and --fan-out at least 1")
        if self.head[1] * 2 > self.max_prompt:
            raise ConfigError(f"max_prompt {self.max_prompt} must be at least twice the longest head, {self.head[1]}")


def synthetic(conversations: int, seed: int = 0, shape: Shape | None = None) -> Trace:
    """So many conversations; the same numbers for the same arguments."""
    if conversations < 1:
        raise ConfigError(f"a synthetic trace needs at least 1 conversation, not {conversations}")
    shape = shape or Shape()
    draws = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(conversations)]
    return Trace(tuple(_Maker(shape, draw).conversation(f"synthetic_{i:04d}") for i, draw in enumerate(draws)))


class _Prompt:
    """A prompt in the making: its tokens, and the ids of its whole blocks. Copies draw from the same ids."""

    __slots__ = ("_fresh", "block", "runs", "tokens")

    def __init__(self, block: int, fresh: Iterator[int], tokens: int = 0, runs: Sequence[Run] = ()) -> None:
        self.block, self._fresh, self.tokens, self.runs = block, fresh, tokens, list(runs)

    def copy(self) -> _Prompt:
        return _Prompt(self.block, self._fresh, self.tokens, self.runs)

    def grow(self, tokens: int) -> None:
        """Append text that nobody has seen before."""
        blocks = (self.tokens + tokens) // self.block - self.tokens // self.block
        self.tokens += tokens
        for fresh in islice(self._fresh, blocks):
            first, size = self.runs[-1] if self.runs else (fresh, 0)
            if size and fresh == first + size:
                self.runs[-1] = (first, size + 1)
            else:
                self.runs.append((fresh, 1))

    def cut(self, tokens: int) -> None:
        """Keep the first `tokens`."""
        left = tokens // self.block
        kept: list[Run] = []
        for first, size in self.runs:
            if left > 0:
                kept.append((first, min(size, left)))
            left -= size
        self.tokens, self.runs = tokens, kept


@dataclass(frozen=True, slots=True)
class _Maker:
    """Draws the parts of one conversation."""

    shape: Shape
    draw: np.random.Generator

    def conversation(self, name: str) -> Conversation:
        shape = self.shape
        fresh = count(1)
        root = self._stream(self._head(fresh), 0.0, max(2, round(self._log_normal(shape.turns))), None)
        starts = [turn.time for turn in root.turns[:-1] if self.draw.random() < shape.agents]
        head = self._head(fresh) if starts else None
        agents = [
            self._stream(head, start, int(self.draw.integers(1, 2 * shape.agent_turns)), 0)
            for start in starts
            for _ in range(shape.fan_out)
            if head is not None
        ]
        return Conversation(name, shape.block, (root, *agents))

    def _head(self, fresh: Iterator[int]) -> _Prompt:
        head = _Prompt(self.shape.block, fresh)
        head.grow(self._scaled(float(self.draw.integers(*self.shape.head, endpoint=True))))
        return head

    def _stream(self, head: _Prompt, start: float, turns: int, parent: int | None) -> Stream:
        most = int(self.shape.max_prompt * self.shape.scale)
        prompt, made, time, think = head.copy(), [], 0.0, 0.0
        for i in range(turns):
            if i and self.draw.random() < self.shape.branch:
                self._leave_path(prompt, head)
            law = self.shape.history if i == 0 and parent is None else self.shape.growth
            added = min(self._scaled(self._log_normal(law)), most - head.tokens)
            if prompt.tokens + added > most:
                prompt = head.copy()
            prompt.grow(added)
            output = self._scaled(self._log_normal(self.shape.output))
            made.append(Turn(round(time, 3), prompt.tokens, output, round(think, 3), tuple(prompt.runs)))
            think = self._log_normal(self.shape.think)
            time += 1.0 + output / _ANSWER_TOKENS_PER_S + think
        tools = head.tokens * 3 // 4
        return Stream(start, tuple(made), tools, head.tokens - tools, parent)

    def _leave_path(self, prompt: _Prompt, head: _Prompt) -> None:
        """Compact to the head, or rewind some of the tail."""
        kept = 0.0 if self.draw.random() < self.shape.compact else self.draw.uniform(0.7, 1.0)
        prompt.cut(max(head.tokens, int(prompt.tokens * kept)))

    def _scaled(self, tokens: float) -> int:
        return max(1, round(tokens * self.shape.scale))

    def _log_normal(self, law: tuple[float, float]) -> float:
        median, sigma = law
        return median * float(np.exp(sigma * self.draw.standard_normal()))
