"""What the engine can tell about itself at any moment, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionCounts
from stepwell.cache.slots import TierUse


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One look. `tiers` by number; `sched_seconds` of the control plane alone (plans, commits, step building, publishing);
    `moves_overdue`, a part of `moves_in_flight`: copies between tiers that nobody waits for any longer; `pages_copied` by (source, target)
    as copies begin, a state's image counted by its pages; `drafts` computed, and accepted, by position behind a drawn token, `drafting`:
    answers draft now; `compiled`:
    kernels by when; `event_batches`: batches of cache events that were sent, and dropped; `device_bytes` of a GPU's memory by kind; `disk`
    and `disk_problems`: what the disk store counts, by name, and causes of trouble; empty without a disk; `prefill`: prompt tokens a
    second, and seconds that each pair of tokens adds in attention, as `Costs` has them now; `ranks`: what is counted of each of several
    that share the model, by name."""

    waiting: int
    parked: int
    draining: int
    running: int
    tiers: tuple[TierUse, TierUse, TierUse]
    leases: int
    nodes: int
    moves_in_flight: int
    moves_overdue: int
    steps: int
    computed_tokens: int
    sampled_tokens: int
    preemptions: int
    rungs_left: int
    rungs_skipped: int
    sched_seconds: float
    tally: AdmissionCounts
    joint: str
    pages_copied: Mapping[tuple[Tier, Tier], int] = field(default_factory=dict)
    page_bytes: int = 0
    audits: int = 0
    audit_mismatches: int = 0
    audits_skipped: int = 0
    quarantined: int = 0
    pins: int = 0
    prefetches: Mapping[str, int] = field(default_factory=dict)
    prefetched_tokens: int = 0
    drafts: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    drafting: bool = False
    compiled: Mapping[str, int] = field(default_factory=dict)
    event_batches: Mapping[str, int] = field(default_factory=dict)
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    disk: Mapping[str, float] = field(default_factory=dict)
    disk_problems: Mapping[str, int] = field(default_factory=dict)
    prefill: tuple[float, float] = (0.0, 0.0)
    ranks: tuple[Mapping[str, float], ...] = ()

    @property
    def readmissions(self) -> int:
        return self.tally.readmissions

    @property
    def admissions(self) -> int:
        return self.tally.admissions
