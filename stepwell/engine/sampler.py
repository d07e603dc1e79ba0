"""From the logits of a step to its result: adjusts each row as its request asks, draws, and says what the model thought.

    logits ─▶ scores ─▶ penalties ▸ allowed, bad words ▸ bias ▸ grammar ▸ ends before min_tokens ─▶ draw

Log-probabilities are the model's own, from before any adjustment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.engine.grammars import GuideError
from stepwell.engine.guide import Guides
from stepwell.ops.adjust import Rated, add_bias, forbid, keep_only, penalise, repeat_less, score
from stepwell.ops.sampling import NO_TOKEN, Draw, sample
from stepwell.sched.request import SamplingParams, Scored
from stepwell.sched.step import Sample, StepResult, Work

_BROKEN = "the model's logits for this request were not finite: send it again without reading the cache"
_NO_GUIDES = "this engine was built without grammars"
_ROWS_AT_ONCE = 256  # rows of a prompt that are scored at once: their logits are large


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """What a step has drawn, still where it was drawn.

    tokens   int64 [n], of the works that sample, in the order of `sampling`; NO_TOKEN where the logits were not finite
    failed   by work: why it has no token, as far as that was known before
    scores   by work: of its token, where that is wanted
    """

    works: int
    sampling: tuple[int, ...]
    tokens: Tensor
    failed: dict[int, str]
    scores: tuple[tuple[int, Rated], ...]

    def result(self, tokens: list[int]) -> StepResult:
        """What the scheduler hears, once `tokens` are here."""
        drawn = {i: t for i, t in zip(self.sampling, tokens, strict=True) if t != NO_TOKEN and i not in self.failed}
        failed = {i: _BROKEN for i in self.sampling if i not in drawn} | self.failed
        return StepResult(
            tuple((drawn[i],) if i in drawn else () for i in range(self.works)),
            tuple(sorted(failed.items())),
            tuple((i, scored([rated])) for i, rated in self.scores if i in drawn),
        )


class Sampler:
    """Chooses the tokens of steps. `guides` None: requests with a grammar fail."""

    __slots__ = ("_eos", "_guides")

    def __init__(self, eos_token_ids: tuple[int, ...] = (), guides: Guides | None = None) -> None:
        """`eos_token_ids` are not sampled before a request's `min_tokens`."""
        self._eos = eos_token_ids
        self._guides = guides

    def choose(self, step: Sequence[Work], sampling: Sequence[int], logits: Tensor) -> Chosen:
        """Sample each work of a step that is in `sampling` from its row of float32 [n, vocab], which may be written to."""
        works = [step[i] for i in sampling]
        samples = [work.sample for work in works if work.sample is not None]
        wanting = [row for row, one in enumerate(samples) if one.params.logprobs is not None]
        untouched = logits[wanting] if wanting else logits  # a copy: rows picked by a list
        failed: dict[int, str] = {}
        for row, (work, one) in enumerate(zip(works, samples, strict=True)):
            try:
                self._adjust(logits[row], work, one)
            except GuideError as error:
                failed[sampling[row]] = str(error)
        tokens = sample(logits, [self._draw(one, logits.shape[1]) for one in samples])
        scores = []
        for at, row in enumerate(wanting):
            rated = score(untouched[at : at + 1], tokens[row : row + 1], samples[row].params.logprobs or 0)
            scores.append((sampling[row], rated))
        return Chosen(len(step), tuple(sampling), tokens, failed, tuple(scores))

    def _adjust(self, row: Tensor, work: Work, one: Sample) -> None:
        params = one.params
        if params.looks_back:
            assert one.history is not None, "a request that looks back brings its tokens"
            if params.penalises:
                _penalise(row, params, one.history, one.index)
            if params.allowed:
                keep_only(row, params.allowed)
            if params.bad_words:
                forbid(row, params.bad_words, _answer(one).tolist())
        if params.logit_bias:
            add_bias(row, params.logit_bias)
        if params.grammar and one.history is not None:
            if self._guides is None:
                raise GuideError(_NO_GUIDES)
            allowed = self._guides.allowed(work.request_id, params, _answer(one))
            if allowed is not None:
                row.masked_fill_(~torch.from_numpy(allowed).to(row.device), float("-inf"))

    def _draw(self, one: Sample, vocab: int) -> Draw:
        params = one.params
        banned: tuple[int, ...] = ()
        if one.index < params.min_tokens:
            ends = params.stop_token_ids + (() if params.ignore_eos else self._eos)
            banned = tuple(token for token in ends if 0 <= token < vocab)
        return Draw(params.temperature, params.top_k, params.top_p, params.seed, one.index, banned, params.min_p)


def score_targets(works: Sequence[Work], hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> list[list[Rated]]:
    """Each work's targets, rated in parts. `hidden` holds their rows one after the other; `logits` makes float32 [n, vocab] of rows."""
    out: list[list[Rated]] = []
    first = 0
    for work in works:
        assert work.score is not None
        targets = torch.from_numpy(work.score.targets.astype(np.int64)).to(hidden.device)
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


def _answer(one: Sample) -> Ints:
    """The answer so far."""
    assert one.history is not None, "a request that looks back brings its tokens"
    return one.history[len(one.history) - one.index :]


def _penalise(row: Tensor, params: SamplingParams, history: Ints, index: int) -> None:
    seen = torch.as_tensor(history, dtype=torch.int64, device=row.device)
    if params.repetition_penalty != 1.0:
        repeat_less(row, seen, params.repetition_penalty)
    if index and (params.presence_penalty or params.frequency_penalty):
        penalise(row, seen[len(history) - index :], params.presence_penalty, params.frequency_penalty)
