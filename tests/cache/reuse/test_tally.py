"""Counters derive from records, so they add up."""

from __future__ import annotations

from dataclasses import replace

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionCounts, AdmissionOutcome, Loss, Reason

LOADED = AdmissionOutcome("a", 40, 20, 12, 0, 8, 32, 20, Tier.HOST, Reason.COMPLETE, ((Loss.NEW, 8),), None, True)
KEPT = AdmissionOutcome("b", 40, 20, 0, 0, 20, 20, 20, Tier.DEVICE, Reason.NO_ROOM, ((Loss.NO_ROOM, 12), (Loss.NEW, 8)))


def tally_of(*outcomes: AdmissionOutcome) -> AdmissionCounts:
    tally = AdmissionCounts()
    for outcome in outcomes:
        tally.add(outcome)
    return tally


def test_tokens_by_source_sum_to_the_prompts() -> None:
    tally = tally_of(LOADED, KEPT, KEPT)
    assert (tally.admissions, tally.prompt) == (3, 120)
    assert tally.device + tally.host + tally.disk + tally.recomputed == tally.prompt
    assert sum(tally.lost.values()) == tally.recomputed == 48
    assert sum(tally.reasons.values()) == tally.admissions


def test_a_load_is_a_boundary_and_a_skip_is_not() -> None:
    tally = tally_of(LOADED, KEPT)
    assert (tally.boundaries, tally.state_device, tally.state_tier) == (1, 0, 1)
    assert tally.reasons[Reason.NO_ROOM] == 1


def test_a_load_whose_state_was_on_the_device() -> None:
    assert tally_of(replace(LOADED, state_tier=Tier.DEVICE)).state_device == 1


def test_a_readmission_is_counted_apart() -> None:
    tally = tally_of(KEPT, replace(LOADED, readmission=True))
    assert (tally.admissions, tally.readmissions, tally.prompt, tally.host, tally.boundaries) == (1, 1, 40, 0, 0)


def test_the_joint_line_names_every_reason_and_adds_up() -> None:
    line = tally_of(LOADED, KEPT, replace(KEPT, reason=Reason.LOAD_FAILED_STATE, fallback_weakened=True)).joint_line()
    assert line.startswith("joint: boundaries=1 (state_device=0 state_tier=1) | ")
    for part in ("no_room=1", "load_failed(state)=1", "load_failed(kv)=0", "off_chunk_grid=0", "fallback_weakened=1"):
        assert part in line.split()
    assert all(f"{reason.value}=" in line for reason in Reason if reason is not Reason.COMPLETE)


def test_legs_are_counted_by_tier_as_completed_of_attempted() -> None:
    failed = ((Tier.EXTERNAL, "kv", True), (Tier.EXTERNAL, "image", False))
    came = ((Tier.EXTERNAL, "kv", True), (Tier.EXTERNAL, "image", True))
    beyond = replace(LOADED, host=0, external=12, state_tier=Tier.EXTERNAL, legs=came)
    tally = tally_of(replace(KEPT, legs=failed), beyond, replace(beyond, readmission=True))
    assert tally.joint_line().endswith(" | loads external(image)=2/3 external(kv)=3/3 state_external=1")
    assert (tally.external, tally.boundaries) == (12, 1)
    assert "loads" not in tally_of(KEPT).joint_line()
