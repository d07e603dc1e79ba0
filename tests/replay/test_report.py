"""What a replay counts, and how it says so."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.replay.lanes import TraceRequest
from stepwell.replay.ledger import Ledger
from stepwell.replay.report import Course, Rungs, Summary, Traffic, quantiles, summarise
from stepwell.replay.terminal import show
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
        ledger.finish(request(index).id, failed=index == 3, now=now + 5.0)
    traffic = Traffic(1.0, (("host to device", (0,) * 19 + (77,) + (0,) * 10 + (2048,)),))
    return summarise(ledger, course(40.0, 0.5), traffic, Rungs(9, 1, (1, 1, 0), 4))


def course(end: float, wall: float = 1.0) -> Course:
    return Course("simulated", (("lanes", "4"),), end, wall, 28)


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
    assert summarise(ledger, course(6.0)).requests == 1
    assert summarise(ledger, course(6.0)).ttft == ()


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
        "ITL p50 416.7 ms",
        "rungs: 9 left, 1 skipped for want of room, 4 copied below; resumed from 1 device, 1 host",
    ):
        assert part in text


def test_every_request_has_a_row_that_tells_the_whole_of_its_prompt() -> None:
    rows = played().rows
    assert [row.measured for row in rows] == [False, False, True, True]
    assert [(r.device, r.host, r.disk, r.recomputed, r.bound) for r in rows[2:]] == [
        (1200, 64, 0, 656, 1280),
        (1000, 0, 0, 1560, 1920),
    ]
    assert [(r.ttft, r.itl, r.answered) for r in rows] == [(2.5, pytest.approx(2.5 / 6), 7)] * 4
    assert [row.failed for row in rows] == [False, False, False, True]


def test_the_document_holds_figures_settings_and_rows() -> None:
    told = json.loads(played().document())
    assert told["settings"] == {"lanes": "4"}
    assert told["tokens"] == {
        "device": 2200,
        "host": 64,
        "disk": 0,
        "recomputed": 2216,
        "prompt": 4480,
        "bound": 3200,
        "answered": 14,
    }
    assert told["bytes_moved"] == {"host to device": 2048}, "of the measured phase alone"
    assert told["ttft_s"] == {"p50": 2.5, "p90": 2.5, "p99": 2.5}
    assert told["throughput"]["prompt_tokens_per_s"] == 4480 / 20
    assert told["rungs"]["used"] == [1, 1, 0]
    assert told["reasons"]["no_rung_above_hit"] == 1
    assert len(told["requests"]) == 4
    assert sum(told["lost"].values()) == 2216


def test_what_is_under_way_at_the_end_is_kept_as_far_as_it_is_known() -> None:
    ledger = Ledger(start=0.0)
    ledger.send(request(0), 1.0)
    ledger.send(request(1), 2.0)
    ledger.admit(outcome(0, 0, 0), 1.5)
    ledger.abandon(4.0)
    admitted, waiting = summarise(ledger, course(4.0)).rows
    assert (admitted.measured, admitted.first, admitted.ended) == (True, None, 4.0)
    assert (waiting.measured, waiting.prompt, waiting.recomputed) == (False, 1280, 1280)
    assert ledger.failed == 0


def test_quantiles_of_nothing_are_none() -> None:
    assert quantiles([]) == {}
    assert quantiles([1.0, 2.0, 3.0])["p50"] == 2.0


def test_an_empty_replay_can_be_shown() -> None:
    summary = summarise(Ledger(start=0.0), course(0.0, 0.0))
    show(summary, Console(file=StringIO()))
    assert json.loads(summary.json_line())["requests"] == 0
    assert summary.excess == pytest.approx(0.0)
