"""What a wrong cache would cost: one leg of it tampered with in the device's pages, on purpose, in an engine of one's own.

    zero_state     images of recurrent states are zeros          foreign_state  each is the next one's
    zero_kv        pages of keys and values are zeros            shifted_kv     each is the one before it

The prompt is then resumed as ever, and its answer's loss compared with that of the untouched cache. An evaluation that does not tell
them apart could not have found a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from stepwell.base.errors import StepwellError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.eval.local import LocalSubject
from stepwell.eval.subject import Told
from stepwell.eval.task import Question
from stepwell.sched.request import SamplingParams

Change: TypeAlias = Callable[[Tensor], Tensor]
_ANSWER = SamplingParams(max_tokens=64, ignore_eos=True)


def _zeros(rows: Tensor) -> Tensor:
    return torch.zeros_like(rows)


def _next(rows: Tensor) -> Tensor:
    return rows.roll(1, 0)


CONTROLS: dict[str, tuple[str, Change]] = {
    "zero_state": ("image", _zeros),
    "foreign_state": ("image", _next),
    "zero_kv": ("kv", _zeros),
    "shifted_kv": ("kv", _next),
}
"""By name: which leg, and what is done to its bytes: [images or pages, bytes]."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Nats a token of right answers behind their prompts, means over questions.

    cold        with nothing read from the cache        resumed  through the cache
    worst       the largest difference of those two for one question
    controls    how much is added by each control, and the share of 64-token answers that it changes
    skipped     controls of a leg of which this model has no pages
    """

    questions: int
    cold: float
    resumed: float
    worst: float
    controls: dict[str, tuple[float, float]]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """Losses of one question; `controls` are losses, and whether the answer changed."""

    cold: float
    resumed: float
    controls: dict[str, tuple[float, bool]]


def measure(subject: LocalSubject, questions: Sequence[Question], scored: int, told: Told) -> Losses:
    """Score the right answers of the first `scored` of two questions or more: cold, resumed, and through every control."""
    assert len(questions) > 1, "another question lends its state"
    others = [*questions[1:], questions[0]]
    tried = [_one(subject, own, other, told) for own, other in zip(questions[:scored], others[:scored], strict=True)]
    rows = [row for row in tried if row is not None]
    if not rows:
        raise StepwellError("the cache holds every right answer as a whole: no loss can be measured")
    resumed = fmean(row.resumed for row in rows)
    controls = {
        name: (fmean(row.controls[name][0] for row in rows) - resumed, fmean(row.controls[name][1] for row in rows))
        for name in rows[0].controls
    }
    skipped = tuple(name for name in CONTROLS if name not in controls)
    worst = max(abs(row.cold - row.resumed) for row in rows)
    return Losses(len(rows), fmean(row.cold for row in rows), resumed, worst, controls, skipped)


def _one(subject: LocalSubject, question: Question, other: Question, told: Told) -> _Row | None:
    """`other` is there so that its state can be taken for the question's own. None where the cache holds all of the right answer."""
    subject.bring(subject.tokenizer.encode(other.prompt))
    prompt = subject.tokenizer.encode(question.prompt)
    gold = subject.tokenizer.encode(question.prompt + question.gold)[len(prompt) :]
    cold = subject.score(prompt, gold, read=False)
    subject.bring(prompt)
    resumed, said = subject.score(prompt, gold), _said(subject, prompt)
    if not (known := len(resumed)):  # tokens of the answer that lie behind what is cached
        told(1)
        return None
    controls = {}
    for name, (leg, change) in CONTROLS.items():
        if not len(_pages(subject, leg)):
            continue
        with tampered(subject, leg, change):
            controls[name] = fmean(subject.score(prompt, gold)[-known:]), _said(subject, prompt) != said
    subject.sink()
    told(1)
    return _Row(fmean(cold[-known:]), fmean(resumed), controls)


def _said(subject: LocalSubject, prompt: Ints) -> list[int]:
    (heard,) = subject.run([subject.request(prompt, _ANSWER, write=False)])
    return heard.tokens


@contextmanager
def tampered(subject: LocalSubject, leg: str, change: Change) -> Iterator[None]:
    """Within it, the device's pages of one leg hold what `change` makes of them; afterwards what they held before.

    Nothing may be written to the cache meanwhile: requests that run within it do not.
    """
    rows = subject.arenas[0].rows
    pages = torch.from_numpy(_pages(subject, leg)).to(rows.device)  # [images or pages, pages of each]
    before = rows[pages]
    rows[pages] = change(before)
    try:
        yield
    finally:
        rows[pages] = before


def _pages(subject: LocalSubject, leg: str) -> np.ndarray:
    """Device pages of every image, or of all KV, int64 [n, pages of each]."""
    found = [
        slots
        for node in subject.loop.directory.tree.nodes()
        for item in node.items()
        if item.what == leg and item.has(Tier.DEVICE) and (slots := item.at[Tier.DEVICE]) is not None and len(slots)
    ]
    if not found:
        return np.empty((0, 0), np.int64)
    if leg == "kv":
        return np.concatenate(found).astype(np.int64).reshape(-1, 1)
    return np.stack(found).astype(np.int64)
