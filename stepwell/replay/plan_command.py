"""`stepwell plan`: how much memory a trace is worth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.units import ceil_div, format_size
from stepwell.replay import flags
from stepwell.replay.eviction import DEFAULT
from stepwell.replay.machine import rolling_every
from stepwell.replay.output import expect_folders, write_text
from stepwell.replay.plan_page import plan_page
from stepwell.replay.policies import expect_policies, is_served
from stepwell.replay.profile import Profile, load_profile
from stepwell.replay.setup import Params, settings_of
from stepwell.replay.shared import with_played
from stepwell.replay.sweep import Point, knee, machines, sweep
from stepwell.replay.terminal import format_seconds, narrow, told


@with_played
def plan_command(
    ctx: typer.Context,
    trace: flags.TraceFile,
    device: flags.DeviceSizes = ["1e6", "2e6", "4e6", "8e6"],  # noqa: B006 (typer copies it)
    host: flags.HostSizes = ["0", "8e6", "33e6"],  # noqa: B006
    disk: flags.DiskSizes = ["0"],  # noqa: B006
    host_price: flags.HostPrice = 0.1,
    jobs: flags.Jobs = None,
    duration: flags.Duration = 1800.0,
    html: flags.HtmlFile = None,
    **shared: Any,
) -> None:
    """Simulate a trace at many sizes of memory, say where more stops paying, and print the flags for `stepwell serve`.

    With several --policy every size is tried under each. The knee is told for each, and the flags are those of the best of our own.

    Example:

        stepwell plan traces.jsonl.gz --profile qwen3-next-80b-a3b-h200 --device 20GiB --device 50GiB --host 0 --host 200GiB
    """
    errors = Console(stderr=True)
    try:
        expect_folders(html)
        speeds = load_profile(shared["profile"])
        if not any(map(is_served, expect_policies(shared["policy"]))):
            raise ConfigError(f"--policy must name the one that serves as well: {DEFAULT}")
        points = _points(ctx.params, speeds, errors)
        chosen = knee([p for p in points if is_served(p.policy)], host_price)
        if html is not None:
            write_text(html, plan_page(points, chosen, speeds, settings_of(ctx.params)))
    except StepwellError as error:
        errors.print(f"stepwell plan: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from error
    _show(points, chosen, speeds, ctx.params, Console())


def _points(params: Params, profile: Profile, console: Console) -> list[Point]:
    wanted = machines(params, profile)
    jobs = params["jobs"] or min(len(wanted), os.cpu_count() or 1)
    found = told(sweep(dict(params), min(jobs, len(wanted))), len(wanted), console)
    names = params["policy"]
    return sorted(found, key=lambda p: (names.index(p.policy), p.device_tokens, p.host_tokens, p.disk_tokens))


def _show(points: Sequence[Point], chosen: Point, profile: Profile, params: Params, console: Console) -> None:
    console.print(_table(points, chosen, profile))
    _plot(points, console)
    for name in dict.fromkeys(p.policy for p in points):
        at = knee([p for p in points if p.policy == name], params["host_price"])
        if at is not chosen:
            memory = _memory(at, profile.costs.kv_bytes_per_token)
            console.print(f"Knee of {name}: {memory}, {at.hit:.1%} reused, bound {at.bound:.1%}", highlight=False)
    console.print(
        f"Knee: {chosen.policy} with {_memory(chosen, profile.costs.kv_bytes_per_token)}, {chosen.hit:.1%} of prompt tokens reused,"
        f" bound {chosen.bound:.1%}. To serve so:",
        highlight=False,
    )
    print("stepwell serve MODEL " + " ".join(serve_flags(chosen, profile, params)))


def serve_flags(chosen: Point, profile: Profile, params: Params) -> list[str]:
    """The words for `stepwell serve` that give each rank this memory, under these rules."""
    kv = profile.costs.kv_bytes_per_token
    words = [f"--device-memory {_size(chosen.device_tokens * kv)}", f"--host-memory {_size(chosen.host_tokens * kv)}"]
    if chosen.disk_tokens:
        words.append(f"--disk-cache FOLDER:{_size(chosen.disk_tokens * kv)}")
    words += [f"--block-size {params['block_size']}", f"--rung-grid {params['rung_grid']}"]
    words.append(f"--state-checkpoint-interval-tokens {params['state_checkpoint_interval_tokens']}")
    every = params["decode_rung_tokens"]
    words.append(f"--decode-rung-tokens {rolling_every(params['block_size']) if every is None else every}")
    words += [
        f"--max-num-seqs {params['max_num_seqs']}",
        f"--max-num-batched-tokens {params['max_num_batched_tokens']}",
    ]
    return words if params["coalesce"] else [*words, "--no-coalesce"]


def _size(size: int) -> str:
    """Rounded up, so that what was simulated fits."""
    if not size:
        return "0"
    return f"{ceil_div(size, 2**20)}MiB" if size < 10 * 2**30 else f"{ceil_div(10 * size, 2**30) / 10:.1f}GiB"


def _table(points: Sequence[Point], chosen: Point, profile: Profile) -> Table:
    kv = profile.costs.kv_bytes_per_token
    head = ("policy", "device + host + disk", "hit", "device", "excess", "TTFT p50", "p99")
    table = narrow(head, ())
    table.title = f"{profile.name}, memory of one rank; bound {chosen.bound:.1%}"
    table.title_justify = "left"
    table.columns[1].no_wrap = False  # three sizes may not fit beside the rest
    for p in points:
        shares = (f"{share:.1%}" for share in (p.hit, p.device, p.excess))
        times = (format_seconds(p.ttft_p50), format_seconds(p.ttft_p99))
        table.add_row(p.policy, _memory(p, kv), *shares, *times, style="bold green" if p is chosen else None)
    return table


def _memory(p: Point, kv: int) -> str:
    return " + ".join(format_size(tokens * kv) for tokens in (p.device_tokens, p.host_tokens, p.disk_tokens) if tokens)


def _plot(points: Sequence[Point], console: Console) -> None:
    """The hit against device memory, a bar each, for those who have no browser at hand."""
    widest = max(len(p.policy) for p in points)
    width = max(20, min(60, console.width - 40 - widest))
    for p in points:
        full, bound = round(width * p.hit), round(width * p.bound)
        bar = "█" * full + "·" * max(0, bound - full)
        console.print(
            f"{p.policy:{widest}}{p.device_tokens / 1e6:8.2f}M +{p.host_tokens / 1e6:8.2f}M {bar} {p.hit:.1%}",
            highlight=False,
        )
