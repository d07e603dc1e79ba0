"""From measured seconds to the rates of a cost model: least squares, no rate below nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import StepwellError
from stepwell.replay.cost import CostModel

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prompt of `tokens` computed alone, in `seconds`."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Decode:
    """One pass over `sequences` with `context` tokens of KV each, in `seconds`."""

    sequences: int
    context: int
    seconds: float


def fit_costs(base: CostModel, prefills: Sequence[Prefill], decodes: Sequence[Decode], overhead_s: float) -> CostModel:
    """`base` with the compute rates that explain what was measured best.

    prefill  t = fixed + n / rate + pairs · a, with n²/2 pairs
    decode   t = overhead + weights + sequences · s + (sequences · context) · k
    Raises StepwellError where the measurements are too few or show no growth.
    """
    if len(prefills) < 3 or len(decodes) < 3:
        raise StepwellError("a fit needs at least 3 prefills and 3 decodes: measure more lengths")
    if min(d.seconds for d in decodes) <= 0:
        raise StepwellError("a decode pass seems to take no time: measure more rounds, on a quieter machine")
    n = np.array([p.tokens for p in prefills], np.float64)
    seconds = np.array([p.seconds for p in prefills])
    _, per_token, per_pair = least_squares(np.stack([np.ones_like(n), n, n * n / 2], 1), seconds)
    if per_token <= 0:
        raise StepwellError("prefill took no longer for longer prompts: measure longer ones, on a quieter machine")
    many = np.array([d.sequences for d in decodes], np.float64)
    context = np.array([d.sequences * d.context for d in decodes], np.float64)
    passes = np.array([d.seconds for d in decodes])
    fixed, per_sequence, per_kv = least_squares(np.stack([np.ones_like(many), many, context], 1), passes)
    return replace(
        base,
        prefill_tokens_per_s=float(1 / per_token),
        attention_s_per_pair=float(per_pair),
        weights_s=float(max(0.0, fixed - overhead_s)),
        sequence_s=float(per_sequence),
        kv_s_per_token=float(per_kv),
        overhead_s=float(min(overhead_s, fixed)),
    )


def least_squares(columns: Floats, values: Floats) -> Floats:
    """The factors that explain `values` [n] by `columns` [n, k] with the least *relative* error, none of them negative.

    A factor that comes out negative is set to 0, and the others are found again.
    """
    weight = 1 / np.maximum(values, 1e-9)
    free = list(range(columns.shape[1]))
    out = np.zeros(columns.shape[1])
    while free:
        scaled = columns[:, free] * weight[:, None]
        norms = np.maximum(np.abs(scaled).max(axis=0), 1e-300)
        found = np.linalg.lstsq(scaled / norms, values * weight, rcond=None)[0] / norms
        if (found >= 0).all():
            out[free] = found
            break
        free.pop(int((found * norms).argmin()))
    return out
