"""One step of the engine as plain data, and the two things that can carry it out.

A runner computes; a mover copies. Both are told exactly which slots to touch and decide nothing. The server brings a torch
runner and a copy thread, the simulator a cost model, tests the tell-tale: the scheduler cannot tell them apart.

A step has two phases. `launch` hands it over, `result` waits for what it drew. The scheduler may launch step k + 1 before it collects
step k: a sequence's input token is then still with the runner, and the step says `LAST_DRAW` in its place.
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
"""An input token: what the latest step that drew from this live slot has drawn. The runner knows it, the scheduler not yet."""

FIRST_DRAFT = -2
"""An input token: what the runner itself drafted to follow the slot's last draw; FIRST_DRAFT − i the i-th after it."""

Logits: TypeAlias = npt.NDArray[np.float32]
"""The model's own answer at one position, [vocab], before anything is added to it, banned or drawn."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """The live state starts at zero: position 0, or nothing to resume from."""


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
    keep_logits  hand out what the first token of this work is chosen from
    """

    params: SamplingParams
    index: int
    history: Ints | None = None
    keep_logits: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Give the log-probabilities of `targets`, the known tokens after the work's first, second, … one, and `top` rivals each."""

    targets: Ints
    top: int


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One sequence's share of a step.

        0 ───────────── write_from ─── start + len(tokens)
        │ shared: read only │  private: written  │

    tokens      int32 [n], positions start … start+n−1; LAST_DRAW may stand for the only one
    pages       int32 [≥ ceil((start+n)/block)], the block table: page i holds the KV of tokens [i·block, (i+1)·block)
    known       the slot's last step named pages[:known] as they are here
    write_from  KV of positions below it is already there and shared: computed for the state's sake, never written
    drafts      tokens behind `tokens` that the runner has drafted itself, and computes too. It draws behind each; drafts that are what
                was drawn are accepted, up to the first that is not, and the result brings a token more than were accepted. The live
                state folds no other, and what else was computed of them, KV and cuts, is nobody's
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
    known: int = 0
    drafts: int = 0

    @property
    def end(self) -> int:
        """Tokens of the sequence once this has been computed, without any draft."""
        return self.start + len(self.tokens)

    @property
    def reach(self) -> int:
        """The same if all drafts are accepted."""
        return self.end + self.drafts


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """Sequences that go on with an answer: each carries its live state on by one token, writes that token's KV and draws the next.

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
        """The same, a work a sequence. O(n) objects: for runners and tests that take one sequence after the other."""
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
        """With rows that nobody reads, up to `count` of them: they compute on `slot` and `page`, which are nobody's."""
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
    """One forward pass: parts of prompts and answers with drafts, and answers that go on without. Results are aligned with `works`:
    decodes come first. With `drafting`, a runner that can drafts behind what each work draws, for a later step."""

    parts: tuple[Work, ...]
    decodes: Decodes = NO_DECODES
    drafting: bool = True

    def __len__(self) -> int:
        """Sequences."""
        return len(self.decodes) + len(self.parts)

    @property
    def works(self) -> tuple[Work, ...]:
        """Every sequence as a work. Made anew for each call."""
        return self.decodes.works() + self.parts

    @property
    def tokens(self) -> int:
        """Tokens computed, drafts included."""
        return len(self.decodes) + sum(len(work.tokens) + work.drafts for work in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """Sampled tokens, aligned with `Step.works`: one where the work samples, and one more for each draft that was accepted; none
    where it does not sample.

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


class Guidance(Protocol):
    """Works out beside the steps which tokens may come next in answers that are held to a grammar."""

    def begin(self, request_id: str, params: SamplingParams, answer: Ints) -> None:
        """Work out what may follow `answer`. Returns at once."""

    def ready(self, request_id: str, params: SamplingParams, answer: Ints) -> bool:
        """Whether that is known; begins it where nobody has. May wait a moment for one that has just begun."""

    def wait(self, seconds: float) -> bool:
        """Wait until more is known, at most this long; False, at once, where nothing is being worked out."""


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
    """Carries out moves, and what the disk is to note, beside the compute."""

    def start(self, tasks: Sequence[Task]) -> None:
        """Begin these in order; returns at once. Only a move is reported; who has no disk ignores the rest."""

    def poll(self) -> list[Report]:
        """Reports since the last call; never waits."""

    def wait(self, seconds: float) -> None:
        """Wait until a report is ready, at most this long. Called only when nothing can be computed."""
