"""Counters. Every one of them derives from `AdmissionOutcome` records, so they cannot disagree with what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.cache.moves import DEVICE
from stepwell.cache.outcome import AdmissionOutcome, Loss, Reason


@dataclass(slots=True)
class Tally:
    """Sums over first admissions. Readmissions after a preemption are counted apart: they are not cache hits of a prompt."""

    admissions: int = 0
    readmissions: int = 0
    prompt: int = 0
    device: int = 0
    host: int = 0
    disk: int = 0
    external: int = 0
    recomputed: int = 0
    boundaries: int = 0
    state_device: int = 0
    state_tier: int = 0
    weakened: int = 0
    coalesced: int = 0
    coalesced_tokens: int = 0
    reasons: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    lost: dict[Loss, int] = field(default_factory=lambda: dict.fromkeys(Loss, 0))

    def add(self, outcome: AdmissionOutcome) -> None:
        if outcome.readmission:
            self.readmissions += 1
            return
        self.admissions += 1
        self.prompt += outcome.prompt
        self.device += outcome.device
        self.host += outcome.host
        self.disk += outcome.disk
        self.external += outcome.external
        self.recomputed += outcome.recomputed
        self.weakened += outcome.fallback_weakened
        self.coalesced += outcome.coalesced > 0
        self.coalesced_tokens += outcome.coalesced
        self.reasons[outcome.reason] += 1
        if outcome.loaded:
            self.boundaries += 1
            self.state_device += outcome.state_tier == DEVICE
            self.state_tier += outcome.state_tier != DEVICE
        for loss, tokens in outcome.lost:
            self.lost[loss] += tokens

    def joint_line(self) -> str:
        """How joint loads went, on one line."""
        skipped = [r for r in Reason if r != Reason.COMPLETE]
        rest = " ".join(f"{r.value}={self.reasons[r]}" for r in skipped)
        head = f"joint: boundaries={self.boundaries} (state_device={self.state_device} state_tier={self.state_tier})"
        return f"{head} | {rest} fallback_weakened={self.weakened}"
