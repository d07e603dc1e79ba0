"""The report of a replay as tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stepwell.base.units import format_size
from stepwell.cache.moves import Tier
from stepwell.replay.report import Rungs, Summary, quantiles

T = TypeVar("T")


def told(done: Iterable[T], total: int, console: Console) -> list[T]:
    """What `done` yields, behind a bar of `total` simulations."""
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    found = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        for one in done:
            found.append(one)
            progress.advance(task)
    return found


def narrow(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of numbers, named in the first column, for terminals of 80 columns."""
    table = Table(*head, box=SIMPLE_HEAD, padding=0)
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    table.columns[0].justify = "left"
    for row in rows:
        table.add_row(*row)
    return table


def show(summary: Summary, console: Console) -> None:
    """Print it."""
    console.print(_shares(summary))
    if any(summary.admitted.lost.values()):
        console.print(_lost(summary))
    if any(summary.admitted.reasons.values()):
        console.print(summary.admitted.joint_line(), soft_wrap=True, highlight=False)
    for line in lines(summary):
        console.print(line, highlight=False, soft_wrap=True)


def lines(summary: Summary) -> list[str]:
    """What is said below the tables."""
    out = []
    for name, values in (("TTFT", summary.ttft), ("ITL", summary.itl)):
        if found := quantiles(values):
            out.append(f"{name} " + ", ".join(f"{mark} {format_seconds(s)}" for mark, s in found.items()))
    rates = summary.rates()
    where = "of simulated time" if summary.course.mode == "simulated" else "of the replay's time"
    out.append(
        f"{summary.requests:,} requests measured ({rates['requests_per_s']:.2f}/s {where},"
        f" {rates['prompt_tokens_per_s']:,.0f} prompt and {rates['answer_tokens_per_s']:,.0f} answer tokens/s),"
        f" {summary.failed} failed"
    )
    out += [f"copied {way}: {format_size(size)}" for way, size in summary.traffic.since(summary.start) if size]
    if summary.rungs is not None:
        out.append(_rungs(summary.rungs))
    out.append(_course(summary))
    return out


def _rungs(rungs: Rungs) -> str:
    used = ", ".join(f"{n:,} {Tier(i).name.lower()}" for i, n in enumerate(rungs.used) if n) or "none"
    demoted = "" if rungs.demoted is None else f", {rungs.demoted:,} copied below"
    return f"rungs: {rungs.left:,} left, {rungs.skipped:,} skipped for want of room{demoted}; resumed from {used}"


def format_seconds(seconds: float) -> str:
    """`0.0123` → `12.3 ms`; `1.234` → `1.23 s`."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _course(summary: Summary) -> str:
    course = summary.course
    if course.mode == "live":
        return f"{summary.played:,} requests sent over {course.wall_s:,.0f} s"
    return (
        f"policy {course.policy}: {summary.played:,} requests and {course.steps:,} steps over {course.end_s:,.0f} simulated seconds"
        f" in {course.wall_s:.1f} s"
    )


def _shares(summary: Summary) -> Table:
    table = Table("prompt tokens", "count", "share", title="Where prompts came from", title_justify="left")
    names = dict.fromkeys(("device", "host", "disk", "recomputed"), "")
    names |= {} if summary.split else {"device": " (cached; this server does not tell the tier)"}
    for name, tokens in summary.sources():
        if summary.split or name not in ("host", "disk"):
            table.add_row(name + names[name], f"{tokens:,}", f"{summary.share(tokens):.2%}")
    table.add_row("bound: an infinite cache", f"{summary.bound:,}", f"{summary.share(summary.bound):.2%}")
    table.add_row("excess prefill over the bound's minimum", "", f"{summary.excess:.2%}", style="bold")
    if summary.excess_future is not None:
        table.add_row("… of a cache of this size that knows the future", "", f"{summary.excess_future:.2%}")
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
