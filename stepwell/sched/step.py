"""One step of the engine as plain data, and the interfaces of the two objects that carry it out.

A runner computes; a mover copies. A step and a move name every slot to be touched, so neither decides anything. The server uses a torch
runner and copy threads, the simulator a cost model, tests the tell-tale runner: the scheduler treats them alike.

A step has two phases: `launch` begins it, `result` waits for the tokens that it drew. The scheduler may launch step k + 1 before it
collects step k. The input token of a sequence is then still with the runner, and the step holds `LAST_DRAW` in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Report, Task
from stepwell.sched.request import SamplingParams, Scored

LAST_DRAW = -1
"""Input token that stands for the last token drawn for this live slot: the runner knows it, the scheduler not yet."""

FIRST_DRAFT = -2
"""Input token that stands for the runner's own first draft behind the slot's last draw; FIRST_DRAFT − i for the i-th after it."""

Logits: TypeAlias = npt.NDArray[np.float32]
"""Logits of the model at one position, [vocab], before any penalty, ban or draw."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """The live state starts at zero, at position 0."""


@dataclass(frozen=True, slots=True, eq=False)
class FromImage:
    """The live state is copied from an image on these device pages before the step computes."""

    pages: Ints


@dataclass(frozen=True, slots=True)
class Carry:
    """The live slot already holds the state at `Work.start`."""


CARRY = Carry()

StateStart: TypeAlias = Fresh | FromImage | Carry


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Copy the state that has folded exactly `position` tokens to these device pages.

    `start < position <= reach`; the recurrent op runs segment by segment between cuts, everything else once.
    """

    position: int
    pages: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Choose the token after the last one of this work. `index` counts the request's earlier draws.

    history  prompt and answer so far, where the params look back on it; the answer is its last `index` tokens
    keep_logits  return the logits that the first token of this work is drawn from
    """

    params: SamplingParams
    index: int
    history: Ints | None = None
    keep_logits: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Return the log-probabilities of `targets`, the known tokens that follow the work's tokens, and of the `top` likeliest at each."""

    targets: Ints
    top: int


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One sequence's share of a step.

        0 ───────────── write_from ─── start + len(tokens)
        │ shared: read only │  private: written  │

    tokens      int32 [n], positions start … start+n−1; LAST_DRAW may stand for the only one
    pages       int32 [≥ ceil((start+n)/block)], the block table: page i holds the KV of tokens [i·block, (i+1)·block)
    known       pages[:known] are unchanged since the slot's last step
    write_from  KV of positions below it is already there and shared: such tokens are computed for the state alone, their KV not written
    drafts      number of tokens behind `tokens` that the runner has drafted and computes too. It draws a token behind each. A draft is
                accepted if it equals the draw before it, up to the first that does not; the result has one token more than drafts were
                accepted. The live state folds accepted drafts only; KV and cuts of the others mean nothing
    slot        live state slot; root: number of the salt's tree (read by the tell-tale runner only)

    `tokens` and `pages` never change: later tokens come behind their end, or in another array.
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
    known: int = 0
    drafts: int = 0

    @property
    def end(self) -> int:
        """Number of tokens of the sequence after this work, without drafts."""
        return self.start + len(self.tokens)

    @property
    def reach(self) -> int:
        """Number of tokens of the sequence after this work if all drafts are accepted."""
        return self.end + self.drafts


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """Sequences that continue an answer: each folds one token into its live state, writes its KV and draws the next.

    Every field has one entry, or row, a sequence; the arrays are int32 [n], and int64 for the roots.

    names      request ids                                  slots    live states      roots    number the salts' trees
    starts     positions of the input tokens                tokens   input tokens, or LAST_DRAW
    tables     block tables, as `Work.pages`                known    as `Work.known`
    params     how to draw                                  indices  counts of earlier draws, at least 1
    histories  (row, prompt and answer so far), where the params look back on it
    cuts       (row, where to leave the state)
    """

    names: tuple[str, ...]
    slots: Ints
    roots: npt.NDArray[np.int64]
    starts: Ints
    tokens: Ints
    tables: tuple[Ints, ...]
    known: Ints
    params: tuple[SamplingParams, ...]
    indices: Ints
    histories: tuple[tuple[int, Ints], ...] = ()
    cuts: tuple[tuple[int, Cut], ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def works(self) -> tuple[Work, ...]:
        """The same as one `Work` for each sequence, for runners and tests that handle sequences one by one. O(n) objects."""
        histories = dict(self.histories)
        cuts: dict[int, tuple[Cut, ...]] = {}
        for row, cut in self.cuts:
            cuts[row] = (*cuts.get(row, ()), cut)
        rows = zip(self.names, self.slots.tolist(), self.roots.tolist(), self.starts.tolist(), strict=True)
        return tuple(
            Work(
                name,
                slot,
                root,
                start,
                self.tokens[i : i + 1],
                self.tables[i],
                0,
                CARRY,
                cuts.get(i, ()),
                Sample(self.params[i], int(self.indices[i]), histories.get(i)),
                known=int(self.known[i]),
            )
            for i, (name, slot, root, start) in enumerate(rows)
        )

    def padded(self, count: int, slot: int, page: int) -> Decodes:
        """With dummy rows up to `count` in all: they compute on `slot` and `page`, which hold nothing, and their results are not read."""
        more = count - len(self)
        if more <= 0:
            return self
        zeros = np.zeros(more, np.int32)
        return replace(
            self,
            names=self.names + ("",) * more,
            slots=np.append(self.slots, zeros + np.int32(slot)),
            roots=np.append(self.roots, zeros),
            starts=np.append(self.starts, zeros),
            tokens=np.append(self.tokens, zeros),
            tables=self.tables + (np.array([page], np.int32),) * more,
            known=np.append(self.known, zeros),
            params=self.params + (SamplingParams(),) * more,
            indices=np.append(self.indices, zeros + np.int32(1)),
        )


_EMPTY: Ints = np.empty(0, np.int32)
NO_DECODES = Decodes((), _EMPTY, _EMPTY.astype(np.int64), _EMPTY, _EMPTY, (), _EMPTY, (), _EMPTY)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: `decodes` are answers without drafts, `parts` are prompts and answers with drafts. Results are aligned with
    `works`: decodes come first. With `drafting`, a runner that can draft does so behind each draw, for a later step."""

    parts: tuple[Work, ...]
    decodes: Decodes = NO_DECODES
    drafting: bool = True

    def __len__(self) -> int:
        """Sequences."""
        return len(self.decodes) + len(self.parts)

    @property
    def works(self) -> tuple[Work, ...]:
        """Every sequence as a `Work`, built anew by each call. O(n)."""
        return self.decodes.works() + self.parts

    @property
    def tokens(self) -> int:
        """Tokens computed, drafts included."""
        return len(self.decodes) + sum(len(work.tokens) + work.drafts for work in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a step drew, aligned with `Step.works`: one token for a work that samples, and one more for each accepted draft; no token for
    a work that does not sample.

    errors  (index of a work, message for its caller) for works whose logits are NaN; the other works are good
    logits  (index, logits) where `Sample.keep_logits` asks for them; a runner without logits (a cost model) gives none
    scores, target_scores  (index, scores) of the sampled tokens and of `Score.targets`, where they were asked for
    """

    sampled: tuple[tuple[int, ...], ...]
    errors: tuple[tuple[int, str], ...] = ()
    scores: tuple[tuple[int, tuple[Scored, ...]], ...] = ()
    target_scores: tuple[tuple[int, tuple[Scored, ...]], ...] = ()
    logits: tuple[tuple[int, Logits], ...] = ()


class Pass(Protocol):
    """A step that has been launched."""

    def result(self) -> StepResult:
        """Wait until the step has been computed; returns what it drew. Called once for each step, in the order of launches."""


class Runner(Protocol):
    """Computes steps, in the order in which they are launched."""

    def launch(self, step: Step) -> Pass:
        """Begin `step`; may return before it is computed. Nothing else touches the slots that it names until its result is there."""


class Guidance(Protocol):
    """Computes, beside the steps, which tokens a grammar allows next."""

    def begin(self, request_id: str, params: SamplingParams, answer: Ints) -> None:
        """Begin to compute what may follow `answer`. Returns at once."""

    def ready(self, request_id: str, params: SamplingParams, answer: Ints) -> bool:
        """True if it is known what may follow `answer`; begins to compute it otherwise. May wait a moment for what has just begun."""

    def wait(self, seconds: float) -> bool:
        """Wait until more is known, at most `seconds`. Returns False at once if nothing is being computed."""


class Unguided:
    """The guidance of runners that follow no grammar."""

    def begin(self, request_id: str, params: SamplingParams, answer: Ints) -> None:
        return None

    def ready(self, request_id: str, params: SamplingParams, answer: Ints) -> bool:
        return True

    def wait(self, seconds: float) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Done:
    """The pass of a runner that computes as it launches."""

    told: StepResult

    def result(self) -> StepResult:
        return self.told


class Mover(Protocol):
    """Carries out copies and the bookkeeping of the disk, beside the compute."""

    def start(self, tasks: Sequence[Task]) -> None:
        """Begin `tasks` in order; returns at once. Each `Move` is reported once; a mover without a disk ignores the other tasks."""

    def poll(self) -> list[Report]:
        """Reports since the last call. Never waits."""

    def wait(self, seconds: float) -> None:
        """Wait until a report is ready, at most this long. Called only when nothing can be computed."""
