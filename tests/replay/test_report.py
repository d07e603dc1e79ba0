"""What a replay counts, and how it says so."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from stepwell.cache.moves import Tier
from stepwell.cache.outcome import AdmissionOutcome, Loss, Reason
from stepwell.replay.lanes import TraceRequest
from stepwell.replay.report import Ledger, Summary, show
from stepwell.replay.trace import Conversation, Stream, Turn

TURNS = tuple(Turn(float(i), 640 * (i + 1), 7, 1.0, ((1, 10 * (i + 1)),)) for i in range(4))
CONVERSATION = Conversation("a", 64, (Stream(0.0, TURNS),))


def request(index: int) -> TraceRequest:
    return TraceRequest(0.0, 0, 0, CONVERSATION, 0, index)


def outcome(index: int, device: int, host: int, readmission: bool = False) -> AdmissionOutcome:
    prompt = TURNS[index].prompt
    again = prompt - device - host
    return AdmissionOutcome(
        request(index).id,
        prompt=prompt,
        device=device,
        host=host,
        disk=0,
        recomputed=again,
        boundary=device + host,
        hit=device,
        state_tier=Tier.HOST if host else Tier.DEVICE if device else None,
        reason=Reason.NO_RUNG if host else Reason.COMPLETE,
        lost=((Loss.NEW, again - 40), (Loss.NO_RUNG, 40)),
        readmission=readmission,
    )


def played() -> Summary:
    """Four turns sent 10 s apart and measured from the third on; the third is preempted and admitted twice."""
    ledger = Ledger(start=20.0)
    for index, (device, host) in enumerate([(0, 0), (576, 0), (1200, 64), (1000, 0)]):
        now = 10.0 * index
        ledger.send(request(index), now)
        ledger.admit(outcome(index, device, host), now + 1.0)
        ledger.answer(request(index).id, 1, now + 2.5)
        ledger.admit(outcome(index, 0, 0, readmission=True), now + 3.0)
        ledger.answer(request(index).id, 6, now + 4.0)
        ledger.finish(request(index).id, failed=index == 3)
    return ledger.summary(40.0, wall_s=0.5, steps=28, moved={(Tier.HOST, Tier.DEVICE): 2048})


def test_only_admissions_of_the_measured_phase_count() -> None:
    summary = played()
    assert (summary.requests, summary.played, summary.failed) == (2, 4, 1)
    admitted = summary.admitted
    assert (admitted.prompt, admitted.device, admitted.host, admitted.disk) == (1920 + 2560, 2200, 64, 0)
    assert summary.bound == 1280 + 1920, "what was sent in the warm-up counts as seen"
    assert summary.answered == 14
    assert summary.ttft == (2.5, 2.5)
    assert {loss: n for loss, n in admitted.lost.items() if n} == {Loss.NEW: 2216 - 80, Loss.NO_RUNG: 80}


def test_requests_are_measured_by_their_admission() -> None:
    ledger = Ledger(start=5.0)
    ledger.send(request(0), 1.0)
    ledger.admit(outcome(0, 0, 0), 6.0)
    assert ledger.summary(6.0, 1.0, 1, {}).requests == 1
    assert ledger.summary(6.0, 1.0, 1, {}).ttft == ()


def test_the_json_line_holds_the_figures() -> None:
    summary = played()
    assert json.loads(summary.json_line()) == {
        "requests": 2,
        "bound": round(3200 / 4480, 5),
        "hit_device": round(2200 / 4480, 5),
        "hit_host": round(64 / 4480, 5),
        "hit_disk": 0.0,
        "excess_prefill": round(2216 / 1280 - 1, 5),
        "requests_per_s": 8.0,
    }


def test_the_table_shows_shares_losses_and_times() -> None:
    out = StringIO()
    show(played(), Console(file=out, width=120))
    text = out.getvalue()
    for part in (
        "49.11%",
        "bound",
        "excess prefill",
        "73.12%",
        "no_rung",
        "p90 2.50 s",
        "host to device: 2.0 KiB",
        "joint: boundaries=",
    ):
        assert part in text


def test_an_empty_replay_can_be_shown() -> None:
    summary = Ledger(start=0.0).summary(0.0, 0.0, 0, {})
    show(summary, Console(file=StringIO()))
    assert json.loads(summary.json_line())["requests"] == 0
    assert summary.excess == pytest.approx(0.0)
