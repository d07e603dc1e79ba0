"""`stepwell replay`: flags to a replay, a replay to a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import typer
from rich.console import Console

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.extras import expect_extra
from stepwell.replay import flags
from stepwell.replay.compare import compared, document, json_line, show_compared
from stepwell.replay.compare_page import compare_page
from stepwell.replay.convert import convert as convert_trace
from stepwell.replay.eviction import DEFAULT as DEFAULT_POLICY
from stepwell.replay.fleet import compare as fleet_compare
from stepwell.replay.fleet.routing import expect_routings
from stepwell.replay.live import LiveReplay, play_live
from stepwell.replay.output import expect_folders, write_text
from stepwell.replay.page import page
from stepwell.replay.policies import expect_policies
from stepwell.replay.profile import load_profile
from stepwell.replay.report import Summary
from stepwell.replay.setup import Params, phases_from, rules_from, settings_of, sizes_from, source_from, trace_from
from stepwell.replay.shared import with_played
from stepwell.replay.simulated import Setting, simulated
from stepwell.replay.terminal import show, told
from stepwell.replay.text import Text
from stepwell.replay.wire import Server


@with_played
def replay_command(
    ctx: typer.Context,
    trace: flags.TraceFile,
    device_tokens: flags.DeviceTokens = "8e6",
    host_tokens: flags.HostTokens = "33e6",
    disk_tokens: flags.DiskTokens = "0",
    replicas: flags.Replicas = 1,
    routing: flags.Routings = ["stepwell"],  # noqa: B006 (typer copies it)
    jobs: flags.Jobs = None,
    live: flags.Live = None,
    model: flags.Model = None,
    api_key: flags.ApiKey = "none",
    time_scale: flags.TimeScale = 1.0,
    vocab: flags.Vocab = 1000,
    ignore_eos: flags.IgnoreEos = True,
    timeout: flags.Timeout = 600.0,
    json_line: flags.JsonLine = False,
    json_file: flags.JsonFile = None,
    html: flags.HtmlFile = None,
    convert: flags.Convert = None,
    convert_to: flags.ConvertTo = "own",
    bound: flags.Bound = "infinite",
    **shared: Any,
) -> None:
    """Play a trace of conversations through the real scheduler and cache on a virtual clock, or against a live server.

    With several --policy the same trace is played under each, other engines' caches among them, and their figures stand side by side.

    Prints where prompt tokens came from beside the bound, what an infinite cache would have reused, and the excess prefill:
    how much more was computed than the bound needs. Simulating needs no GPU and no model.

    Examples:

        stepwell replay synthetic --lanes 16 --duration 600 --html report.html

        stepwell replay traces.jsonl.gz --device-tokens 8e6 --host-tokens 33e6 --seed 1 --json

        stepwell replay traces.jsonl.gz --policy ladder --policy lru --policy vllm --policy sglang --html compared.html

        stepwell replay traces.jsonl.gz --live http://localhost:8000 --lanes 4 --time-scale 0.2
    """
    _run(ctx.params, Console(), Console(stderr=True))


def _run(params: Params, console: Console, errors: Console) -> None:
    try:
        if params["live"] is not None:
            expect_extra("client", "stepwell replay --live")
        names = _policies(params)
        _expect_bound(params)
        expect_folders(params["json_file"], params["html"])
        if params["convert"] is not None:
            console.print(convert_trace(trace_from(params), params["convert"], params["convert_to"]), highlight=False)
            return
        if expect_routings(params["routing"]) != ["stepwell"] and params["replicas"] == 1:
            raise ConfigError("--routing chooses among several: give --replicas 2 or more as well")
        if params["replicas"] > 1:
            fleet = _play_fleet(params, errors)
            _write(params, lambda: fleet_compare.document(fleet), None)
            fleet_compare.show(fleet, console)
            line = fleet_compare.json_line(fleet)
        elif len(names) > 1:
            found = _compare(names, params, errors)
            _write(params, lambda: document(found), lambda: compare_page(found))
            show_compared(found, console)
            line = json_line(found)
        else:
            summary = _replay(params, names[0], errors)
            _write(params, summary.document, lambda: page(summary))
            show(summary, console)
            line = summary.json_line()
    except StepwellError as error:
        errors.print(f"stepwell replay: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from error
    if params["json_line"]:
        print(line)


def _policies(params: Params) -> list[str]:
    names = expect_policies(params["policy"])
    if params["live"] is not None and names != [DEFAULT_POLICY]:
        raise ConfigError("--policy is for what is simulated: leave it out with --live, the server has its own")
    return names


def _expect_bound(params: Params) -> None:
    if params["bound"] not in flags.BOUNDS:
        raise ConfigError(f"--bound {params['bound']!r} is unknown: use one of {', '.join(flags.BOUNDS)}")
    if params["bound"] == "future" and params["live"] is not None:
        raise ConfigError("--bound future needs the sizes of a simulated machine: leave it out with --live")


def _write(params: Params, document: Callable[[], str], page: Callable[[], str] | None) -> None:
    """The files that were asked for."""
    if params["json_file"] is not None:
        write_text(params["json_file"], document())
    if params["html"] is not None and page is not None:
        write_text(params["html"], page())


def _compare(names: Sequence[str], params: Params, console: Console) -> dict[str, Summary]:
    """What came of each policy, in the order in which they were named."""
    jobs = min(params["jobs"] or os.cpu_count() or 1, len(names))
    done = told(compared(dict(params), names, jobs), len(names), console)
    return dict(sorted(done, key=lambda pair: names.index(pair[0])))


def _play_fleet(params: Params, console: Console) -> dict[str, fleet_compare.FleetSummary]:
    """What came of each routing, in the order in which they were named."""
    if params["live"] is not None:
        raise ConfigError("--replicas are simulated: leave it out with --live")
    if params["html"] is not None:
        raise ConfigError("--html shows one machine: with --replicas, use --json-file")
    names = expect_routings(params["routing"])
    jobs = min(params["jobs"] or os.cpu_count() or 1, len(names))
    done = fleet_compare.compared(dict(params), jobs, console)
    found = list(done) if jobs == 1 else told(done, len(names), console)
    return dict(sorted(found, key=lambda pair: names.index(pair[0])))


def _replay(params: Params, policy: str, console: Console) -> Summary:
    trace, rules, phases = trace_from(params), rules_from(params), phases_from(params)
    settings = settings_of(params)
    if params["live"] is not None:
        server = Server(params["live"], params["model"], params["api_key"], params["ignore_eos"], params["timeout"])
        source = source_from(trace, rules, params["idle_gap_cap"])
        text = Text(rules.seed, params["vocab"])
        return play_live(LiveReplay(source, server, text, phases, params["time_scale"]), settings, console)
    profile = load_profile(params["profile"])
    future = params["bound"] == "future"
    setting = Setting(trace, rules, phases, profile.costs, params["idle_gap_cap"], future, settings)
    return simulated(setting, sizes_from(params, profile, policy), console)
