"""Sampling settings of the requests in live slots, as arrays by slot: a step reads columns instead of an object for each sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.model.batch import Draws, Longs
from stepwell.sched.request import SamplingParams

_MASK = (1 << 64) - 1


class Wishes:
    """Remembers the parameters of each slot's last request. A slot whose request is the same object costs one comparison."""

    __slots__ = ("_looks", "_params", "_reals", "_waits", "_wholes")

    def __init__(self, slots: int) -> None:
        self._params: list[SamplingParams | None] = [None] * slots
        self._reals = np.zeros((3, slots))  # temperature, top_p, min_p
        self._wholes = np.zeros((2, slots), np.int64)  # top_k, seed
        self._looks = np.zeros(slots, np.bool_)  # logits are looked at, or changed, before the draw
        self._waits = np.zeros(slots, np.int64)  # draws before which no end may be chosen

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
