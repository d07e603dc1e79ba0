"""What a replay found: counted from events as they come, then shown as a table and as one line of JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell.base.units import format_size
from stepwell.cache.moves import Tier
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.replay.bound import Bound, excess_prefill
from stepwell.replay.lanes import TraceRequest


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished replay. Token counts are of the measured phase; warm-up is left out everywhere but in `played`.

    requests    admitted in the measured phase; failed: of them, ended in an error or refused
    bound       tokens that an infinite cache would have reused
    ttft        s from sending to the first token, one a request, sorted
    reasons     admissions by why they went no further; lost: recomputed tokens by what they were lost to
    played      all requests, warm-up included; wall_s: real seconds they took to simulate; virtual_s: simulated seconds
    """

    requests: int
    failed: int
    prompt: int
    bound: int
    device: int
    host: int
    disk: int
    recomputed: int
    answered: int
    measured_s: float
    ttft: tuple[float, ...]
    reasons: tuple[tuple[str, int], ...]
    lost: tuple[tuple[str, int], ...]
    boundaries: tuple[int, int]
    moved: tuple[tuple[str, int], ...]
    steps: int
    played: int
    wall_s: float
    virtual_s: float

    @property
    def excess(self) -> float:
        """Prefill beyond what the bound needs, as a share of it."""
        return excess_prefill(self.recomputed, self.prompt, self.bound)

    def share(self, tokens: int) -> float:
        return tokens / self.prompt if self.prompt else 0.0

    def joint_line(self) -> str:
        """Boundaries reached, and why admissions went no further, in one line."""
        device, below = self.boundaries
        reasons = " ".join(f"{name}={count}" for name, count in self.reasons)
        return f"joint: boundaries={device + below} (state_device={device} state_tier={below}) | {reasons}"

    def json_line(self) -> str:
        """The figures for machines. `requests_per_s`: simulated requests a real second, warm-up included."""
        figures = {
            "requests": self.requests,
            "bound": round(self.share(self.bound), 5),
            "hit_device": round(self.share(self.device), 5),
            "hit_host": round(self.share(self.host), 5),
            "hit_disk": round(self.share(self.disk), 5),
            "excess_prefill": round(self.excess, 5),
            "requests_per_s": round(self.played / self.wall_s, 1) if self.wall_s > 0 else 0.0,
        }
        return json.dumps(figures)


@dataclass(slots=True)
class Tally:
    """Counts a replay as it goes. A request belongs to the measured phase if it was admitted from `start` (s) on."""

    start: float
    bound: Bound = field(default_factory=Bound)
    sent: dict[str, tuple[float, int]] = field(default_factory=dict)
    awaiting: dict[str, float] = field(default_factory=dict)
    measured: set[str] = field(default_factory=set)
    tokens: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    ttft: list[float] = field(default_factory=list)
    played: int = 0

    def send(self, request: TraceRequest, now: float) -> None:
        self.sent[request.id] = (now, self.bound.add(request.conversation, request.turn, request.edition))
        self.played += 1

    def admit(self, outcome: AdmissionOutcome, now: float) -> None:
        """One admission. Readmissions of a preempted request stay out of every figure."""
        name = outcome.request_id
        if now < self.start or outcome.readmission or name in self.measured:
            return
        sent, bound = self.sent[name]
        self.measured.add(name)
        self.awaiting[name] = sent
        self.tokens += Counter(
            requests=1,
            prompt=outcome.prompt,
            bound=bound,
            device=outcome.device,
            host=outcome.host,
            disk=outcome.disk,
            recomputed=outcome.recomputed,
        )
        self.reasons[str(outcome.reason)] += 1
        self.lost.update({str(loss): tokens for loss, tokens in outcome.lost})
        if outcome.state_tier is not None:
            self.tokens["state_device" if outcome.state_tier == Tier.DEVICE else "state_tier"] += 1

    def answer(self, name: str, tokens: int, now: float) -> None:
        """Tokens of an answer arrived."""
        if (sent := self.awaiting.pop(name, None)) is not None:
            self.ttft.append(now - sent)
        if now >= self.start:
            self.tokens["answered"] += tokens

    def finish(self, name: str, failed: bool) -> None:
        del self.sent[name]
        self.awaiting.pop(name, None)
        self.tokens["failed"] += failed and name in self.measured
        self.measured.discard(name)

    def summary(self, now: float, wall_s: float, steps: int, moved: dict[tuple[Tier, Tier], int]) -> Summary:
        count = self.tokens
        ways = [(f"{a.name.lower()} to {b.name.lower()}", n) for (a, b), n in sorted(moved.items())]
        return Summary(
            requests=count["requests"],
            failed=count["failed"],
            prompt=count["prompt"],
            bound=count["bound"],
            device=count["device"],
            host=count["host"],
            disk=count["disk"],
            recomputed=count["recomputed"],
            answered=count["answered"],
            measured_s=max(0.0, now - self.start),
            ttft=tuple(sorted(self.ttft)),
            reasons=tuple(sorted(self.reasons.items())),
            lost=tuple(self.lost.most_common()),
            boundaries=(count["state_device"], count["state_tier"]),
            moved=tuple(ways),
            steps=steps,
            played=self.played,
            wall_s=wall_s,
            virtual_s=now,
        )


def show(summary: Summary, console: Console) -> None:
    """The terminal report."""
    console.print(_shares(summary))
    console.print(_lost(summary))
    console.print(summary.joint_line(), soft_wrap=True, highlight=False)
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
        ("device", summary.device),
        ("host", summary.host),
        ("disk", summary.disk),
        ("recomputed", summary.recomputed),
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
    for reason, tokens in summary.lost:
        table.add_row(reason, f"{tokens:,}", f"{summary.share(tokens):.2%}")
    for column in table.columns[1:]:
        column.justify = "right"
    return table
