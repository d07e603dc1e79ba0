"""One step of the engine as plain data, and the two things that can carry it out.

A runner computes; a mover copies. Both are told exactly which slots to touch and decide nothing. The server brings a torch
runner and a copy thread, the simulator a cost model, tests the tell-tale: the scheduler cannot tell them apart.

A step has two phases. `launch` hands it over, `result` waits for what it drew. The scheduler may launch step k + 1 before it collects
step k: a sequence's input token is then still with the runner, and the step says `LAST_DRAW` in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Report, Task
from stepwell.sched.request import SamplingParams, Scored

LAST_DRAW = -1
"""An input token: what the latest step that drew from this live slot has drawn. The runner knows it, the scheduler not yet."""

Logits: TypeAlias = npt.NDArray[np.float32]
"""The model's own answer at one position, [vocab], before anything is added to it, banned or drawn."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """The live state starts at zero: position 0, or nothing to resume from."""


@dataclass(frozen=True, slots=True)
class FromImage:
    """The live state is copied from an image on these device pages before the step computes."""

    pages: Ints


@dataclass(frozen=True, slots=True)
class Carry:
    """The live slot already holds the state at `Work.start`."""


StateStart: TypeAlias = Fresh | FromImage | Carry


@dataclass(frozen=True, slots=True)
class Cut:
    """Copy the state that has folded exactly `position` tokens to these device pages.

    `start < position <= start + len(tokens)`; the recurrent op runs segment by segment between cuts, everything else once.
    """

    position: int
    pages: Ints


@dataclass(frozen=True, slots=True)
class Sample:
    """Choose the token after the last one of this work. `index` counts the request's earlier draws.

    history  prompt and answer so far, where the params look back on it; the answer is its last `index` tokens
    keep_logits  hand out what the first token of this work is chosen from
    """

    params: SamplingParams
    index: int
    history: Ints | None = None
    keep_logits: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """Give the log-probabilities of `targets`, the known tokens after the work's first, second, … one, and `top` rivals each."""

    targets: Ints
    top: int


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's share of a step.

        0 ───────────── write_from ─── start + len(tokens)
        │ shared: read only │  private: written  │

    tokens      int32 [n], positions start … start+n−1; LAST_DRAW may stand for the only one
    pages       int32 [≥ ceil((start+n)/block)], the block table: page i holds the KV of tokens [i·block, (i+1)·block)
    write_from  KV of positions below it is already there and shared: computed for the state's sake, never written
    slot        live state slot; root numbers the salt's tree (only the tell-tale looks at it)

    `tokens` and `pages` never change: what the request goes on to do happens behind their end, or in another array.
    """

    request_id: str
    slot: int
    root: int
    start: int
    tokens: Ints
    pages: Ints
    write_from: int
    state: StateStart
    cuts: tuple[Cut, ...]
    sample: Sample | None
    score: Score | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """All works of one forward pass."""

    works: tuple[Work, ...]

    @property
    def tokens(self) -> int:
        """Tokens computed by one pass."""
        return sum(len(w.tokens) for w in self.works)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sampled tokens, aligned with `Step.works`: one where the work samples, none where it does not.

    `errors` maps the index of a work whose own numbers went wrong (NaN logits) to what to tell its caller; the others stand.
    `logits`, by index of the work, where they are to be kept; a runner that has none (a cost model) leaves them out.
    `scores` and `target_scores`, by index of the work: of sampled tokens and of `Score.targets`, where they were asked for.
    """

    sampled: tuple[tuple[int, ...], ...]
    errors: tuple[tuple[int, str], ...] = ()
    scores: tuple[tuple[int, tuple[Scored, ...]], ...] = ()
    target_scores: tuple[tuple[int, tuple[Scored, ...]], ...] = ()
    logits: tuple[tuple[int, Logits], ...] = ()


class Pass(Protocol):
    """A step that has been launched."""

    def result(self) -> StepResult:
        """Wait until it has been computed; what it drew. Called once, in the order of launches."""


class Runner(Protocol):
    """Computes steps, in the order in which they are launched."""

    def launch(self, step: Step) -> Pass:
        """Begin `step`; may return before it is computed. Until its result is there, all that it names is its own to read and write."""


@dataclass(frozen=True, slots=True)
class Done:
    """The pass of a runner that computes as it launches."""

    told: StepResult

    def result(self) -> StepResult:
        return self.told


class Mover(Protocol):
    """Carries out moves, and what the disk is to note, beside the compute."""

    def start(self, tasks: Sequence[Task]) -> None:
        """Begin these in order; returns at once. Only a move is reported; who has no disk ignores the rest."""

    def poll(self) -> list[Report]:
        """Reports since the last call; never waits."""

    def wait(self, seconds: float) -> None:
        """Wait until a report is ready, at most this long. Called only when nothing can be computed."""
