"""Rates found again from the seconds that they would give."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.errors import StepwellError
from stepwell.bench.fit import Decode, Prefill, fit_costs, least_squares
from stepwell.replay.cost import CostModel


def test_rates_are_found_again() -> None:
    prefills = [Prefill(n, 0.01 + n / 2000 + 3e-8 * n * n / 2) for n in (256, 512, 1024, 2048, 4096)]
    decodes = [Decode(b, c, 0.02 + 0.003 * b + 4e-7 * b * c) for b, c in ((1, 256), (4, 256), (8, 1000), (1, 4000))]
    found = fit_costs(CostModel(to_disk=7.0), prefills, decodes, overhead_s=0.004)
    assert found.prefill_tokens_per_s == pytest.approx(2000, rel=1e-3)
    assert found.attention_s_per_pair == pytest.approx(3e-8, rel=1e-3)
    assert (found.weights_s, found.overhead_s) == (pytest.approx(0.016, rel=1e-3), 0.004)
    assert found.sequence_s == pytest.approx(0.003, rel=1e-3)
    assert found.kv_s_per_token == pytest.approx(4e-7, rel=1e-3)
    assert found.to_disk == 7.0, "what was not measured stays"


def test_no_rate_is_negative() -> None:
    n = np.arange(1.0, 6.0)
    found = least_squares(np.stack([np.ones_like(n), n, n * n], 1), 10 + 3 * n - 0.2 * n * n)
    assert (found >= 0).all()
    assert found[2] == 0
    assert found[1] > 0


def test_too_little_or_nonsense_is_refused() -> None:
    decodes = [Decode(b, 100, 0.01 * b) for b in (1, 2, 3)]
    with pytest.raises(StepwellError, match="at least 3"):
        fit_costs(CostModel(), [Prefill(1, 1.0)], decodes, 0.0)
    with pytest.raises(StepwellError, match="no longer for longer prompts"):
        fit_costs(CostModel(), [Prefill(n, 1.0 / n) for n in (1, 2, 4, 8)], decodes, 0.0)
    with pytest.raises(StepwellError, match="to take no time"):
        fit_costs(CostModel(), [Prefill(n, 1.0 * n) for n in (1, 2, 4)], [*decodes, Decode(4, 100, -0.01)], 0.0)
