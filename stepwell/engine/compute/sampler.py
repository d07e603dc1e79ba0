"""From the logits of a pass to a step's result: adjusts rows as their requests ask, has tokens drawn, and says what the model thought.

    logits ─▶ scores ─▶ penalties ▸ allowed, bad words ▸ bias ▸ grammar ▸ ends before min_tokens ─▶ draw

Log-probabilities are the model's own, from before any adjustment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.engine.compute.batching import Asked
from stepwell.engine.compute.tallies import Tallies
from stepwell.engine.grammar.guide import Allowed
from stepwell.engine.grammar.vocabulary import GuideError
from stepwell.model.backend import Output
from stepwell.model.batch import Longs
from stepwell.ops.adjust import Rated, add_bias, completing, forbid, keep_only, penalise, repeat_less, score
from stepwell.ops.sampling import NO_TOKEN
from stepwell.sched.request import SamplingParams, Scored
from stepwell.sched.step import StepResult, Work

_BROKEN = "the model's logits for this request were not finite: send it again without reading the cache"
_NO_GUIDES = "this engine was built without grammars"
_ROWS_AT_ONCE = 256  # rows of a prompt that are scored at once: their logits are large

Upload: TypeAlias = Callable[[Sequence[Longs]], list[Tensor]]
"""`Backend.upload`."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """What a step has drawn, still where it was drawn.

    sampling  indices in the step of the works that sample; one with drafts comes once more for each
    tokens   int64 [n], theirs; NO_TOKEN where the logits were not finite
    failed   by work: why it has no token, as far as that was known before
    scores   by work: of its token, where that is wanted; of several in their order
    """

    sampling: tuple[int, ...]
    tokens: Tensor
    failed: dict[int, str]
    scores: tuple[tuple[int, Rated], ...]

    def result(self, works: int, tokens: list[int]) -> StepResult:
        """What the scheduler hears of a step of so many works, once `tokens` are here: NO_TOKEN where a draft before was not accepted."""
        drawn: dict[int, tuple[int, ...]] = {}
        for i, token in zip(self.sampling, tokens, strict=True):
            if token != NO_TOKEN and i not in self.failed:
                drawn[i] = (*drawn.get(i, ()), token)
        failed = {i: _BROKEN for i in self.sampling if i not in drawn} | self.failed
        rated: dict[int, list[Rated]] = {}
        for i, one in self.scores:
            if len(rated.setdefault(i, [])) < len(drawn.get(i, ())):
                rated[i].append(one)
        return StepResult(
            tuple(drawn.get(i, ()) for i in range(works)),
            tuple(sorted(failed.items())),
            tuple((i, scored(parts)) for i, parts in rated.items() if parts),
        )


class Masks(Protocol):
    """Says which tokens grammars allow."""

    def allowed(self, request_id: str, params: SamplingParams, answer: Ints) -> Allowed | None:
        """Which tokens may follow `answer`, bool [vocab]; None for all. Raises GuideError where none may."""


class Sampler:
    """Chooses the tokens of steps. `guides` None: requests with a grammar fail."""

    __slots__ = ("_eos", "_guides", "_tallies")

    def __init__(self, eos_token_ids: tuple[int, ...] = (), guides: Masks | None = None) -> None:
        """`eos_token_ids` are not sampled before a request's `min_tokens`."""
        self._eos = eos_token_ids
        self._guides = guides
        self._tallies = Tallies()

    def choose(self, asked: Asked, output: Output, draw: Callable[[Tensor], Tensor], upload: Upload) -> Chosen:
        """The tokens of a pass: those that it has drawn itself, or, where some logits are special, drawn by `draw` once these are adjusted.

        `output.logits` may be written to. Waits for nothing that the device computes.
        """
        if output.tokens is not None or not asked.works:
            tokens = output.logits.new_empty(0, dtype=torch.int64) if output.tokens is None else output.tokens
            return Chosen(asked.works, tokens, {}, ())
        logits = output.logits.float()
        wanting = [row for row in asked.special if asked.params[row].logprobs is not None]
        untouched = logits.index_select(0, upload([np.array(wanting, np.int64)])[0]) if wanting else logits
        failed, histories = {}, dict(asked.histories)
        for row in asked.special:
            one = _One(asked.names[row], asked.params[row], int(asked.indices[row]), histories.get(row), upload)
            try:
                self._adjust(logits[row], one)
            except GuideError as error:
                failed[asked.works[row]] = str(error)
        tokens = draw(logits)
        scores = []
        for at, row in enumerate(wanting):
            rated = score(untouched[at : at + 1], tokens[row : row + 1], asked.params[row].logprobs or 0)
            scores.append((asked.works[row], rated))
        return Chosen(asked.works, tokens, failed, tuple(scores))

    def _adjust(self, row: Tensor, one: _One) -> None:
        params = one.params
        if params.looks_back:
            if params.penalises:
                self._penalise(row, one)
            if params.allowed:
                keep_only(row, one.sent(params.allowed))
            if params.bad_words:
                longest = max(map(len, params.bad_words))
                forbid(row, one.sent(completing(params.bad_words, one.answer[-longest:].tolist())))
        if params.logit_bias:
            _bias(row, one)
        if params.grammar and one.history is not None:
            if self._guides is None:
                raise GuideError(_NO_GUIDES)
            allowed = self._guides.allowed(one.name, params, one.answer)
            if allowed is not None:
                _only(row, allowed, one.upload)
        if one.index < params.min_tokens:
            ends = params.stop_token_ids + (() if params.ignore_eos else self._eos)
            forbid(row, one.sent([token for token in ends if 0 <= token < row.shape[0]]))

    def _penalise(self, row: Tensor, one: _One) -> None:
        params = one.params
        tally = self._tallies.of(one.name, one.past, one.index, row, one.sent)
        if params.repetition_penalty != 1.0:
            repeat_less(row, tally.seen, params.repetition_penalty)
        if params.presence_penalty or params.frequency_penalty:
            penalise(row, tally.times, params.presence_penalty, params.frequency_penalty)


@dataclass(frozen=True, slots=True, eq=False)
class _One:
    """A row to be adjusted: its request, the count of its earlier draws, and prompt and answer so far where they are looked back on."""

    name: str
    params: SamplingParams
    index: int
    history: Ints | None
    upload: Upload

    @property
    def past(self) -> Ints:
        assert self.history is not None, "a request that looks back brings its tokens"
        return self.history

    @property
    def answer(self) -> Ints:
        """The answer so far."""
        return self.past[len(self.past) - self.index :]

    def sent(self, tokens: Sequence[int] | Ints) -> Tensor:
        return self.upload([np.asarray(tokens, np.int64)])[0]


def score_targets(
    works: Sequence[Work], hidden: Tensor, logits: Callable[[Tensor], Tensor], upload: Upload
) -> list[list[Rated]]:
    """Each work's targets, rated in parts. `hidden` holds their rows one after the other; `logits` makes float32 [n, vocab] of rows."""
    out: list[list[Rated]] = []
    first = 0
    for work in works:
        assert work.score is not None
        (targets,) = upload([work.score.targets.astype(np.int64)])
        found: list[Rated] = []
        for at in range(0, len(targets), _ROWS_AT_ONCE):
            part = targets[at : at + _ROWS_AT_ONCE]
            rows = logits(hidden[first + at : first + at + len(part)])
            found.append(score(rows, part, work.score.top))
        out.append(found)
        first += len(targets)
    return out


def scored(parts: Sequence[Rated]) -> tuple[Scored, ...]:
    """As a caller hears of it. Waits for the device."""
    return tuple(Scored(own, tuple(top)) for part in parts for own, top in part.rows())


def _bias(row: Tensor, one: _One) -> None:
    tokens, values = (np.array(column) for column in zip(*one.params.logit_bias, strict=True))
    (sent,) = one.upload([values.astype(np.float64).view(np.int64)])
    add_bias(row, one.sent(tokens), sent.view(torch.float64))


def _only(row: Tensor, allowed: Allowed, upload: Upload) -> None:
    """Make impossible what is not allowed, bool [vocab]."""
    words = np.zeros(-(-len(allowed) // 8) * 8, np.bool_)
    words[: len(allowed)] = allowed
    (sent,) = upload([words.view(np.int64)])
    row.masked_fill_(~sent.view(torch.bool)[: len(allowed)], float("-inf"))
