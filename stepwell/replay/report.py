"""What a replay found, simulated or live: one structure for the terminal, the JSON and the page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionCounts
from stepwell.replay.bound import excess_prefill
from stepwell.replay.ledger import Ledger, Played

Mode: TypeAlias = Literal["simulated", "live"]
MARKS = (50, 90, 99)
SOURCES = ("device", "host", "disk", "recomputed")


@dataclass(frozen=True, slots=True)
class Rungs:
    """Rungs of the measured phase: left; skipped for want of room; resumed from, by tier; copied below the device (None: not told)."""

    left: int
    skipped: int
    used: tuple[int, int, int]
    demoted: int | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes copied over time, by direction. `seconds`: one figure for so many seconds, from the replay's start on."""

    seconds: float = 1.0
    ways: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def since(self, start: float) -> tuple[tuple[str, int], ...]:
        """Bytes from `start` (s) on, by direction."""
        first = round(start / self.seconds)
        return tuple((way, sum(sizes[first:])) for way, sizes in self.ways)


@dataclass(frozen=True, slots=True)
class Course:
    """How the replay itself went: seconds on its clock, warm-up included; real seconds; engine steps; the policy that was simulated."""

    mode: Mode
    settings: tuple[tuple[str, str], ...]
    end_s: float
    wall_s: float
    steps: int = 0
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished replay. Figures are of the measured phase, which begins at `start`; warm-up is left out everywhere but in
    `played`, `rows` and what is told over time.

    admitted    counters of the measured admissions; of a live server only as far as it tells them
    failed      requests of the phase that were refused or ended in an error
    bound       tokens that an infinite cache would have reused
    future      the least tokens that a cache of this size recomputes if it knows the future (`stepwell.replay.future`); None: not asked for
    rungs       None where the server does not tell
    split       whether cached tokens are told by tier; if not they stand under `device`
    """

    course: Course
    start: float
    admitted: AdmissionCounts
    failed: int
    bound: int
    answered: int
    played: int
    rows: tuple[Played, ...]
    traffic: Traffic = Traffic()
    rungs: Rungs | None = None
    split: bool = True
    future: int | None = None

    @property
    def requests(self) -> int:
        return self.admitted.admissions

    @property
    def measured_s(self) -> float:
        return max(0.0, self.course.end_s - self.start)

    @property
    def excess(self) -> float:
        """Prefill beyond what the bound needs, as a share of it."""
        return excess_prefill(self.admitted.recomputed, self.admitted.prompt, self.bound)

    @property
    def excess_future(self) -> float | None:
        """The excess that is left to a cache of this size which knows the future; None where that was not asked for."""
        return None if self.future is None else excess_prefill(self.future, self.admitted.prompt, self.bound)

    @property
    def ttft(self) -> tuple[float, ...]:
        """s from sending to the first token, one a measured request, sorted."""
        return tuple(sorted(r.ttft for r in self.rows if r.measured and r.ttft is not None))

    @property
    def itl(self) -> tuple[float, ...]:
        """s between two tokens, the mean of each measured answer, sorted."""
        return tuple(sorted(r.itl for r in self.rows if r.measured and r.itl is not None))

    def share(self, tokens: int) -> float:
        """Of all prompt tokens."""
        return tokens / self.admitted.prompt if self.admitted.prompt else 0.0

    def sources(self) -> tuple[tuple[str, int], ...]:
        """Prompt tokens by where they came from."""
        a = self.admitted
        return tuple(zip(SOURCES, (a.device, a.host, a.disk, a.recomputed), strict=True))

    def rates(self) -> dict[str, float]:
        """Throughput over the measured seconds."""
        seconds = self.measured_s or float("inf")
        return {
            "requests_per_s": self.requests / seconds,
            "prompt_tokens_per_s": self.admitted.prompt / seconds,
            "answer_tokens_per_s": self.answered / seconds,
        }

    def figures(self) -> dict[str, float | str]:
        """The figures for machines. `requests_per_s`: requests played a real second, warm-up included. `policy`: if simulated."""
        wall = self.course.wall_s
        figures: dict[str, float | str] = {
            "requests": self.requests,
            "bound": round(self.share(self.bound), 5),
            "hit_device": round(self.share(self.admitted.device), 5),
            "hit_host": round(self.share(self.admitted.host), 5),
            "hit_disk": round(self.share(self.admitted.disk), 5),
            "excess_prefill": round(self.excess, 5),
            "requests_per_s": round(self.played / wall, 1) if wall > 0 else 0.0,
        }
        if self.excess_future is not None:
            figures["excess_prefill_future"] = round(self.excess_future, 5)
        return {**figures, "policy": self.course.policy} if self.course.policy else figures

    def json_line(self) -> str:
        """`figures` as one line."""
        return json.dumps(self.figures())

    def document(self) -> str:
        """Everything, as JSON: settings, figures, and a row for each request."""
        return json.dumps(self.told(), indent=1)

    def told(self) -> dict[str, Any]:
        """The same as plain values."""
        a = self.admitted
        return {
            "mode": self.course.mode,
            "settings": dict(self.course.settings),
            "figures": self.figures(),
            "measured_s": round(self.measured_s, 3),
            "played": self.played,
            "failed": self.failed,
            "tokens": {**dict(self.sources()), "prompt": a.prompt, "bound": self.bound, "answered": self.answered},
            "cached_tokens_by_tier_told": self.split,
            "ttft_s": quantiles(self.ttft),
            "itl_s": quantiles(self.itl),
            "throughput": {name: round(value, 4) for name, value in self.rates().items()},
            "bytes_moved": dict(self.traffic.since(self.start)),
            "coalesced": {"requests": a.coalesced, "tokens": a.coalesced_tokens},
            "rungs": asdict(self.rungs) if self.rungs else None,
            "reasons": {reason.value: count for reason, count in a.reasons.items()},
            "lost": {loss.value: tokens for loss, tokens in a.lost.items()},
            "joint": a.joint_line(),
            "requests": [asdict(row) for row in self.rows],
        }


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """{"p50": …, "p90": …, "p99": …}; empty where there are no values."""
    found = list(values)
    if not found:
        return {}
    return {f"p{p}": round(float(np.quantile(found, p / 100)), 6) for p in MARKS}


def summarise(
    ledger: Ledger, course: Course, traffic: Traffic | None = None, rungs: Rungs | None = None, split: bool = True
) -> Summary:
    """What `ledger` noted, up to the end of `course`."""
    return Summary(
        course=course,
        start=ledger.start,
        admitted=ledger.admitted,
        failed=ledger.failed,
        bound=ledger.bound,
        answered=ledger.answered,
        played=ledger.played,
        rows=tuple(sorted(ledger.rows, key=lambda row: (row.sent, row.lane, row.stream))),
        traffic=traffic or Traffic(),
        rungs=rungs,
        split=split,
    )


def way_name(source: Tier, target: Tier) -> str:
    """A direction in words."""
    return f"{source.name.lower()} to {target.name.lower()}"
