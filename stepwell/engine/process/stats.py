"""The loop's own statistics as a message, by the names that metrics show."""

from __future__ import annotations

from stepwell.cache.moves import NATIVE, Tier
from stepwell.engine.process.messages import Stats
from stepwell.sched.stats import EngineStats

PHASES = ("waiting", "parked", "running", "draining")
PAGE_STATES = ("free", "cached", "private", "leased", "clean", "pinned")
"""free + cached + private = all; leased, clean and pinned pages are cached ones."""
GAUGES = ("leases", "nodes", "moves_in_flight", "moves_overdue", "page_bytes", "pins", "drafting")
COPIES = (
    ("device", "host"),
    ("host", "device"),
    ("device", "disk"),
    ("host", "disk"),
    ("disk", "device"),
)
"""Copies between tiers that there can be, as (source, target)."""
AUDITS = ("audits", "audit_mismatches", "audits_skipped", "quarantined")
COUNTERS = (
    "steps",
    "computed_tokens",
    "sampled_tokens",
    "preemptions",
    "readmissions",
    "rungs_left",
    "rungs_skipped",
    "sched_seconds",
    "prefetched_tokens",
    *AUDITS,
)

_COPIES = tuple((Tier[source.upper()], Tier[target.upper()]) for source, target in COPIES)


def stats_message(stats: EngineStats) -> Stats:
    """What a front end hears of `stats`."""
    return Stats(
        queues={phase: getattr(stats, phase) for phase in PHASES},
        pages={
            tier.name.lower(): {state: getattr(stats.tiers[tier], state) for state in PAGE_STATES} for tier in NATIVE
        },
        gauges={name: int(getattr(stats, name)) for name in GAUGES},
        counters={name: getattr(stats, name) for name in COUNTERS},
        copied=[stats.pages_copied.get(pair, 0) * stats.page_bytes for pair in _COPIES],
        joint=stats.joint,
        prefetches=dict(stats.prefetches),
        drafts=[stats.drafts[at] for at in sorted(stats.drafts)],
        compiled=dict(stats.compiled),
        event_batches=dict(stats.event_batches),
        device_bytes=dict(stats.device_bytes),
        disk=dict(stats.disk),
        problems=dict(stats.disk_problems),
        ranks=[dict(counts) for counts in stats.ranks],
        prefill=stats.prefill,
    )
