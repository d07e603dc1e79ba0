"""Sequences in flight, by phase."""

from __future__ import annotations

from dataclasses import replace

from stepwell.base.clock import VirtualClock
from stepwell.server.observe.inflight import InFlight
from tests.server.observe.test_recent import OUTCOME


def test_a_sequence_goes_through_its_phases_and_is_gone() -> None:
    clock = VirtualClock()
    flying = InFlight(clock)
    flying.sent("a", 40)
    flying.sent("b", 7)
    assert flying.queued == len(flying) == 2
    flying.loading("a")
    assert [row["phase"] for row in flying.rows(9)] == ["load", "queued"] and flying.queued == 2
    flying.admitted(OUTCOME)
    clock.advance(2.5)
    assert [row["phase"] for row in flying.rows(9)] == ["prefill", "queued"]
    flying.generated("a", 3)
    row = flying.rows(1)[0]
    assert (row["id"], row["phase"], row["generated"], row["seconds"]) == ("a", "decode", 3, 2.5)
    assert (row["prompt"], row["device"], row["host"]) == (40, 16, 8)
    assert flying.queued == 1 and flying.is_queued("b") and not flying.is_queued("a")
    flying.gone("a")
    flying.gone("b")
    flying.gone("b")
    assert flying.queued == len(flying) == 0 and flying.rows(9) == []


def test_readmissions_and_strangers_change_nothing() -> None:
    flying = InFlight(VirtualClock())
    flying.sent("a", 40)
    for outcome in (OUTCOME, replace(OUTCOME, readmission=True), replace(OUTCOME, request_id="zzz")):
        flying.admitted(outcome)
    flying.generated("zzz", 1)
    assert flying.queued == 0 and len(flying) == 1


def test_an_id_is_not_shown_whole() -> None:
    clock = VirtualClock()
    calls = InFlight(clock)
    calls.sent("resp_0123456789abcdef0123456789abcdef", 10)
    assert calls.rows(1)[0]["id"] == "resp_0123456789a"


def test_rows_of_one_tenant_are_its_own() -> None:
    flying = InFlight(VirtualClock())
    for i, tenant in enumerate(("one", "two", "one", "")):
        flying.sent(f"r{i}", 10, tenant)
    assert [row["id"] for row in flying.rows(9, "one")] == ["r0", "r2"]
    assert [row["id"] for row in flying.rows(1, "two")] == ["r1"] and len(flying.rows(9)) == 4
