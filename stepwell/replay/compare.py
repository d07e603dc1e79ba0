"""Several policies on one trace: run side by side, told in one table and one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.base.units import format_size
from stepwell.replay.machine import MachineSizes
from stepwell.replay.profile import load_profile
from stepwell.replay.report import Summary, quantiles
from stepwell.replay.setup import sizes_from
from stepwell.replay.sweep import simulations
from stepwell.replay.terminal import format_seconds


def compared(params: dict[str, Any], names: Sequence[str], jobs: int) -> Iterator[tuple[str, Summary]]:
    """Each policy with what came of it, as they are done; `params` are those of `replay_command`. Raises StepwellError."""
    profile = load_profile(params["profile"])
    yield from simulations(params, [sizes_from(params, profile, name) for name in names], jobs, _named)


def _named(summary: Summary, sizes: MachineSizes) -> tuple[str, Summary]:
    return sizes.policy, summary


def figures(summary: Summary) -> dict[str, Any]:
    """What is compared, for machines: the figures, seconds to the first token, bytes copied by direction."""
    ttft = quantiles(summary.ttft)
    told: dict[str, Any] = {name: value for name, value in summary.figures().items() if name != "policy"}
    told |= {f"ttft_{mark}": ttft.get(mark, 0.0) for mark in ("p50", "p90")}
    return {**told, "bytes_moved": dict(summary.traffic.since(summary.start))}


def json_line(found: Mapping[str, Summary]) -> str:
    """The figures of each policy, as one line."""
    return json.dumps({"policies": {name: figures(summary) for name, summary in found.items()}})


def document(found: Mapping[str, Summary]) -> str:
    """Everything of each policy, as JSON."""
    return json.dumps({"policies": {name: summary.told() for name, summary in found.items()}}, indent=1)


def show_compared(found: Mapping[str, Summary], console: Console) -> None:
    """One row a policy."""
    table = Table(*HEAD, title="Share of prompt tokens by where they came from", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, summary in found.items():
        table.add_row(name, *cells(summary))
    console.print(table)


HEAD = ("policy", "device", "host", "disk", "hit", "bound", "excess", "TTFT p50", "p90", "copied down", "up")


def cells(summary: Summary) -> list[str]:
    """The figures of one policy as `HEAD` names them, its name left out."""
    a, ttft = summary.admitted, quantiles(summary.ttft)
    shares = (summary.share(n) for n in (a.device, a.host, a.disk, a.device + a.host + a.disk, summary.bound))
    moved = summary.traffic.since(summary.start)
    up = sum(size for way, size in moved if way.endswith("to device"))
    return [
        *(f"{share:.1%}" for share in shares),
        f"{summary.excess:.1%}",
        *(format_seconds(ttft[mark]) if ttft else "" for mark in ("p50", "p90")),
        format_size(sum(size for _, size in moved) - up),
        format_size(up),
    ]
