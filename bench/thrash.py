"""What the cache keeps where the working set exceeds memory: five machines, from ample to far too small, on a trace of agents.

    python bench/thrash.py TRACE
    python bench/thrash.py TRACE --row 1M+2M --policy ladder --policy lru --warmup 300 --duration 600

A row is named by device and host memory in tokens of KV. Ends with one line of JSON: by row and policy the excess prefill over what an
infinite cache needs, and the least of it that a cache of the same size leaves if it knows the future (`replay --bound future`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from stepwell.replay.eviction import DEFAULT
from stepwell.replay.formats import read_trace
from stepwell.replay.lanes import LaneRules
from stepwell.replay.machine import MachineSizes
from stepwell.replay.profile import DEFAULT as DEFAULT_PROFILE
from stepwell.replay.profile import load_profile
from stepwell.replay.report import quantiles
from stepwell.replay.simulate import Phases
from stepwell.replay.simulated import Setting, simulated

Figures: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """Memory in tokens of KV, conversations at a time, and the tokens that one rung takes."""

    device: int
    host: int
    lanes: int = 24
    rung: int = 3167


ROWS = {
    "8M+33M": Row(8_000_000, 33_000_000, lanes=56, rung=6100),
    "3M+5.2M": Row(3_000_000, 5_200_000),
    "1.5M+5M": Row(1_500_000, 5_000_000),
    "3M+0": Row(3_000_000, 0),
    "1M+2M": Row(1_000_000, 2_000_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="default: all")
    parser.add_argument("--policy", action="append", help=f"default: {DEFAULT}")
    parser.add_argument("--warmup", type=float, default=900.0)
    parser.add_argument("--duration", type=float, default=2400.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    phases = Phases(options.warmup, options.duration)
    names, policies = options.row or list(ROWS), options.policy or [DEFAULT]
    asked = [(options.trace, name, policy, phases, options.seed) for name in names for policy in policies]
    found: dict[str, dict[str, Figures]] = {name: {} for name in names}
    for name, policy, figures in _played(asked, options.jobs):
        found[name][policy] = figures
        print(f"{name:8} {policy:8} {figures}", flush=True)
    print(json.dumps(found))


Asked: TypeAlias = tuple[Path, str, str, Phases, int]


def _played(asked: list[Asked], jobs: int) -> Iterator[tuple[str, str, Figures]]:
    """Row, policy and figures of each that was asked for; `jobs` side by side."""
    if jobs == 1:
        yield from map(play, asked)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, asked)


def play(asked: Asked) -> tuple[str, str, Figures]:
    """One row under one policy, from an empty cache."""
    path, name, policy, phases, seed = asked
    row, profile = ROWS[name], load_profile(DEFAULT_PROFILE)
    sizes = replace(MachineSizes(policy=policy), device_tokens=row.device, host_tokens=row.host, rung_tokens=row.rung)
    setting = Setting(read_trace(path), LaneRules(lanes=row.lanes, seed=seed), phases, profile.costs, future=True)
    summary = simulated(setting, sizes)
    assert summary.excess_future is not None, "it was asked for"
    ttft, copied = quantiles(summary.ttft), sum(size for _, size in summary.traffic.since(summary.start))
    came = summary.admitted
    return (
        name,
        policy,
        {
            "excess": round(summary.excess, 4),
            "future": round(summary.excess_future, 4),
            "bound": round(summary.share(summary.bound), 4),
            "device": round(summary.share(came.device), 4),
            "host": round(summary.share(came.host), 4),
            "requests": summary.requests,
            "ttft_p50": ttft["p50"],
            "ttft_p90": ttft["p90"],
            "copied_gib": round(copied / 2**30, 1),
            "wall_s": round(summary.course.wall_s, 1),
        },
    )


if __name__ == "__main__":
    main()
