"""Sampling settings of the requests in live slots, as arrays by slot: a step reads columns instead of an object for each sequence.

Mostly the same answers go on from step to step: what does not change of them is made once (`Going`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.model.batch import Draws, Longs
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Decodes

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Going:
    """The decodes of a step in the order of their live slots, and how they draw.

    decodes  as some step had them
    order    int64 [rows], which of them each row is; `works`, the same as numbers
    draws    their settings; the counts of earlier draws are those of that step
    looks    bool [rows], logits are looked at or changed before the draw; `waits`, int64, while fewer tokens have been drawn
    plain    from so many earlier draws on, nobody's logits are looked at; None: somebody's always are
    """

    decodes: Decodes
    order: Longs
    works: tuple[int, ...]
    names: tuple[str, ...]
    params: tuple[SamplingParams, ...]
    draws: Draws
    looks: npt.NDArray[np.bool_]
    waits: Longs
    plain: int | None

    def are(self, decodes: Decodes) -> bool:
        """Whether `decodes` are the same answers in the same order: a step names the same arrays then, which never change."""
        own = self.decodes
        return own.slots is decodes.slots and own.params is decodes.params and own.names is decodes.names

    def drawn(self, indices: Longs) -> Draws:
        """How they draw, after `indices` earlier draws, int64 [rows]."""
        d = self.draws
        return Draws(d.temperature, d.top_p, d.min_p, d.top_k, d.seed, indices, d.slots)

    def special(self, indices: Longs) -> tuple[int, ...]:
        """Rows whose logits are looked at or changed before the draw."""
        if self.plain is not None and indices.min() >= self.plain:
            return ()
        return tuple((self.looks | (indices < self.waits)).nonzero()[0].tolist())


class Wishes:
    """Remembers the parameters of each slot's last request. A slot whose request is the same object costs one comparison."""

    __slots__ = ("_going", "_looks", "_params", "_reals", "_waits", "_wholes")

    def __init__(self, slots: int) -> None:
        self._going: Going | None = None
        self._params: list[SamplingParams | None] = [None] * slots
        self._reals = np.zeros((3, slots))  # temperature, top_p, min_p
        self._wholes = np.zeros((2, slots), np.int64)  # top_k, seed
        self._looks = np.zeros(slots, np.bool_)  # logits are looked at, or changed, before the draw
        self._waits = np.zeros(slots, np.int64)  # draws before which no end may be chosen

    def going(self, decodes: Decodes) -> Going:
        """These decodes, at least one, by live slot. O(1) where the last ones were the same answers, else O(rows)."""
        if self._going is None or not self._going.are(decodes):
            order = np.argsort(decodes.slots, kind="stable")
            works = tuple(order.tolist())
            slots, params = decodes.slots[order].astype(np.int64), tuple([decodes.params[i] for i in works])
            draws = self.draws(slots, params, decodes.indices[order].astype(np.int64))
            looks, waits = self._looks[slots], self._waits[slots]
            plain, names = None if looks.any() else int(waits.max()), tuple([decodes.names[i] for i in works])
            self._going = Going(decodes, order, works, names, params, draws, looks, waits, plain)
        return self._going

    def draws(self, slots: Longs, params: Sequence[SamplingParams], indices: Longs) -> Draws:
        """The settings of rows in these live slots, one entry a row; `indices`, int64 [rows], count earlier draws. O(rows)."""
        known = self._params
        for slot, one in zip(slots.tolist(), params, strict=True):
            if known[slot] is not one:
                self._take(slot, one)
        temperature, top_p, min_p = self._reals[:, slots]
        top_k, seed = self._wholes[:, slots]
        return Draws(temperature, top_p, min_p, top_k, seed, indices, slots)

    def special(self, slots: Longs, indices: Longs) -> list[int]:
        """Rows whose logits are read or changed before the draw. Call `draws` for the same slots first."""
        rows: list[int] = (self._looks[slots] | (indices < self._waits[slots])).nonzero()[0].tolist()
        return rows

    def _take(self, slot: int, params: SamplingParams) -> None:
        greedy = params.temperature <= 0 or params.top_k == 1
        self._params[slot] = params
        self._reals[:, slot] = 0.0 if greedy else params.temperature, params.top_p, params.min_p
        self._wholes[:, slot] = max(0, params.top_k), _signed(params.seed)
        self._looks[slot] = params.looks_back or bool(params.logit_bias) or params.logprobs is not None
        self._waits[slot] = params.min_tokens


def _signed(seed: int) -> int:
    """The seed's low 64 bits as int64."""
    low = seed & _MASK
    return low - (1 << 64) if low >> 63 else low
