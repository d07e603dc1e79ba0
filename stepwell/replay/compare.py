"""Several policies on one trace: run side by side, told in one table and one line."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from stepwell.base.units import format_size
from stepwell.replay.machine import MachineSizes
from stepwell.replay.profile import load_profile
from stepwell.replay.report import Summary, quantiles
from stepwell.replay.setup import sizes_from
from stepwell.replay.sweep import simulations
from stepwell.replay.terminal import format_seconds, narrow


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
    return {**told, "failed": summary.failed, "bytes_moved": dict(summary.traffic.since(summary.start))}


def json_line(found: Mapping[str, Summary]) -> str:
    """The figures of each policy, as one line."""
    return json.dumps({"policies": {name: figures(summary) for name, summary in found.items()}})


def document(found: Mapping[str, Summary]) -> str:
    """Everything of each policy, as JSON."""
    return json.dumps({"policies": {name: summary.told() for name, summary in found.items()}}, indent=1)


def show_compared(found: Mapping[str, Summary], console: Console) -> None:
    """One row a policy."""
    console.print(narrow(head(found.values()), ((name, *cells(found, name)) for name in found)))
    if said := failures(found):
        console.print(said, highlight=False)


def failures(found: Mapping[str, Summary]) -> str:
    """How many requests of each policy failed, if any did: one that is refused is in no other figure."""
    if not any(summary.failed for summary in found.values()):
        return ""
    return "Requests that failed: " + ", ".join(f"{name} {summary.failed:,}" for name, summary in found.items())


def head(found: Collection[Summary]) -> tuple[str, ...]:
    """Of the columns of a comparison; the disk has one where it was of use. `future`: the excess of a cache that knows the future."""
    disk = ("disk",) if any(summary.admitted.disk for summary in found) else ()
    future = ("future",) if any(summary.future is not None for summary in found) else ()
    return "policy", "device", "host", *disk, "hit", "bound", "excess", *future, "TTFT p50", "p90", "copied"


def cells(found: Mapping[str, Summary], name: str) -> list[str]:
    """The figures of one policy as `head` names them, its name left out. Copied: bytes of all directions."""
    summary = found[name]
    a, ttft = summary.admitted, quantiles(summary.ttft)
    tiers = (a.device, a.host, a.disk)[: 3 if "disk" in head(found.values()) else 2]
    shares = (summary.share(tokens) for tokens in (*tiers, a.prompt - a.recomputed, summary.bound))
    return [
        *(f"{share:.1%}" for share in shares),
        f"{summary.excess:.1%}",
        *([f"{summary.excess_future:.1%}"] if summary.excess_future is not None else []),
        *(format_seconds(ttft[mark]) if ttft else "" for mark in ("p50", "p90")),
        format_size(sum(size for _, size in summary.traffic.since(summary.start))),
    ]
