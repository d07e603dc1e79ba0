"""What a replay found: counted from events as they come, then shown as a table and as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell.base.units import format_size
from stepwell.cache.moves import Tier
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.cache.tally import Tally
from stepwell.replay.bound import Bound, excess_prefill
from stepwell.replay.lanes import TraceRequest


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished replay. Figures are of the measured phase; warm-up is left out everywhere but in `played`.

    admitted    counters of the measured admissions
    failed      requests of the phase that were refused or ended in an error
    bound       tokens that an infinite cache would have reused
    ttft        s from sending to the first token, one a request, sorted
    moved       bytes copied, by direction, warm-up included
    played      all requests, warm-up included; wall_s: real seconds they took to simulate; virtual_s: simulated seconds
    """

    admitted: Tally
    failed: int
    bound: int
    answered: int
    measured_s: float
    ttft: tuple[float, ...]
    moved: tuple[tuple[str, int], ...]
    steps: int
    played: int
    wall_s: float
    virtual_s: float

    @property
    def requests(self) -> int:
        return self.admitted.admissions

    @property
    def excess(self) -> float:
        """Prefill beyond what the bound needs, as a share of it."""
        return excess_prefill(self.admitted.recomputed, self.admitted.prompt, self.bound)

    def share(self, tokens: int) -> float:
        """Of all prompt tokens."""
        return tokens / self.admitted.prompt if self.admitted.prompt else 0.0

    def json_line(self) -> str:
        """The figures for machines. `requests_per_s`: simulated requests a real second, warm-up included."""
        figures = {
            "requests": self.requests,
            "bound": round(self.share(self.bound), 5),
            "hit_device": round(self.share(self.admitted.device), 5),
            "hit_host": round(self.share(self.admitted.host), 5),
            "hit_disk": round(self.share(self.admitted.disk), 5),
            "excess_prefill": round(self.excess, 5),
            "requests_per_s": round(self.played / self.wall_s, 1) if self.wall_s > 0 else 0.0,
        }
        return json.dumps(figures)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request under way. `awaited`: measured, and its first token has not come."""

    at: float
    bound: int
    measured: bool = False
    awaited: bool = False


@dataclass(slots=True)
class Ledger:
    """Counts a replay as it goes. A request belongs to the measured phase if it was first admitted from `start` (s) on."""

    start: float
    admitted: Tally = field(default_factory=Tally)
    ttft: list[float] = field(default_factory=list)
    played: int = 0
    _bound: Bound = field(default_factory=Bound)
    _sent: dict[str, _Sent] = field(default_factory=dict)
    _tokens: int = 0
    _answered: int = 0
    _failed: int = 0

    def send(self, request: TraceRequest, now: float) -> None:
        self._sent[request.id] = _Sent(now, self._bound.add(request.conversation, request.turn, request.edition))
        self.played += 1

    def admit(self, outcome: AdmissionOutcome, now: float) -> None:
        if now < self.start or outcome.readmission:
            return
        sent = self._sent[outcome.request_id]
        self._sent[outcome.request_id] = replace(sent, measured=True, awaited=True)
        self.admitted.add(outcome)
        self._tokens += sent.bound

    def answer(self, name: str, tokens: int, now: float) -> None:
        """Tokens of an answer arrived."""
        sent = self._sent[name]
        if sent.awaited:
            self.ttft.append(now - sent.at)
            self._sent[name] = replace(sent, awaited=False)
        if now >= self.start:
            self._answered += tokens

    def finish(self, name: str, failed: bool) -> None:
        sent = self._sent.pop(name)
        self._failed += failed and (sent.measured or sent.at >= self.start)

    def summary(self, now: float, wall_s: float, steps: int, moved: Mapping[tuple[Tier, Tier], int]) -> Summary:
        return Summary(
            admitted=self.admitted,
            failed=self._failed,
            bound=self._tokens,
            answered=self._answered,
            measured_s=max(0.0, now - self.start),
            ttft=tuple(sorted(self.ttft)),
            moved=tuple((f"{a.name.lower()} to {b.name.lower()}", size) for (a, b), size in sorted(moved.items())),
            steps=steps,
            played=self.played,
            wall_s=wall_s,
            virtual_s=now,
        )


def show(summary: Summary, console: Console) -> None:
    """The terminal report."""
    console.print(_shares(summary))
    console.print(_lost(summary))
    console.print(summary.admitted.joint_line(), soft_wrap=True, highlight=False)
    if summary.ttft:
        marks = np.quantile(summary.ttft, (0.5, 0.9, 0.99))
        console.print(
            "TTFT " + ", ".join(f"p{p} {s:.2f} s" for p, s in zip((50, 90, 99), marks, strict=True)), highlight=False
        )
    rate = summary.requests / summary.measured_s if summary.measured_s else 0.0
    console.print(
        f"{summary.requests:,} requests measured ({rate:.2f}/s of simulated time), {summary.failed} failed",
        highlight=False,
    )
    for way, size in summary.moved:
        console.print(f"copied {way}: {format_size(size)}", highlight=False)
    console.print(
        f"{summary.played:,} requests and {summary.steps:,} steps over {summary.virtual_s:,.0f} simulated seconds"
        f" in {summary.wall_s:.1f} s",
        highlight=False,
    )


def _shares(summary: Summary) -> Table:
    table = Table("prompt tokens", "count", "share", title="Where prompts came from", title_justify="left")
    for name, tokens in (
        ("device", summary.admitted.device),
        ("host", summary.admitted.host),
        ("disk", summary.admitted.disk),
        ("recomputed", summary.admitted.recomputed),
        ("bound: an infinite cache", summary.bound),
    ):
        table.add_row(name, f"{tokens:,}", f"{summary.share(tokens):.2%}")
    table.add_row("excess prefill over the bound's minimum", "", f"{summary.excess:.2%}", style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _lost(summary: Summary) -> Table:
    table = Table(
        "recomputed because", "tokens", "share of prompts", title="Why tokens were recomputed", title_justify="left"
    )
    lost = sorted(summary.admitted.lost.items(), key=lambda pair: -pair[1])
    for reason, tokens in (pair for pair in lost if pair[1]):
        table.add_row(reason.value, f"{tokens:,}", f"{summary.share(tokens):.2%}")
    for column in table.columns[1:]:
        column.justify = "right"
    return table
