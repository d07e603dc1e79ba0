"""One admission in words."""

from __future__ import annotations

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason


def test_a_resume_in_one_line() -> None:
    outcome = AdmissionOutcome("a", 9000, 8000, 192, 0, 808, 8192, 8000, Tier.HOST, Reason.COMPLETE)
    assert outcome.cached == 8192
    assert outcome.in_one_line() == "resumed 8,192 of 9,000 tokens: 8,000 device + 192 host + 0 disk; complete"


def test_where_it_diverged_is_said() -> None:
    outcome = AdmissionOutcome("a", 40, 20, 0, 0, 20, 20, 20, Tier.DEVICE, Reason.NO_RUNG, (), 1234)
    assert "; diverged from the closest cached prompt at 1,234; no_rung_above_hit" in outcome.in_one_line()
