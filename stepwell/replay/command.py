"""`stepwell replay`: flags to a simulation, a simulation to a report."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepwell.base.errors import StepwellError
from stepwell.replay.cost import CostModel
from stepwell.replay.formats import read_trace
from stepwell.replay.lanes import LaneRules, Lanes, Source, Timeline
from stepwell.replay.machine import Machine, MachineSizes
from stepwell.replay.report import Summary, show
from stepwell.replay.simulate import Phases, Simulation, timed_run
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.text import Text
from stepwell.replay.trace import Trace

SYNTHETIC = "synthetic"

_TRACE = "Trace file or folder, plain or .gz; or `synthetic`, to make one up."
_DEVICE = "Device memory, as tokens of KV that it would hold (KV and rungs share it). 8e6 works."
_HOST = "Host memory for the cache, in the same unit. 0: no host tier."
_RUNG = "Memory of one rung (checkpoint of the recurrent state), as tokens of KV."


def replay_command(
    trace: Annotated[str, typer.Argument(help=_TRACE, show_default=False)],
    device_tokens: Annotated[float, typer.Option(help=_DEVICE)] = 8e6,
    host_tokens: Annotated[float, typer.Option(help=_HOST)] = 33e6,
    rung_tokens: Annotated[int, typer.Option(help=_RUNG, min=1)] = 6100,
    lanes: Annotated[int, typer.Option(help="Conversations going on at any time.")] = 56,
    warmup: Annotated[float, typer.Option(help="Simulated seconds before figures count.", min=0)] = 900.0,
    duration: Annotated[float, typer.Option(help="Simulated seconds that count.", min=0)] = 3600.0,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.", min=0)] = 0,
    start: Annotated[
        tuple[float, float],
        typer.Option(help="Each lane begins between these shares of its first conversation's span."),
    ] = (0.25, 0.75),
    think_cap: Annotated[float, typer.Option(help="Longest think time, in seconds; longer ones are cut.")] = 300.0,
    max_prompt: Annotated[int, typer.Option(help="Leave out turns with prompts of more tokens.")] = 256_000,
    block_size: Annotated[int, typer.Option(help="Tokens in one page.")] = 64,
    rung_grid: Annotated[int, typer.Option(help="Rungs of prompts stand on multiples of so many tokens.")] = 64,
    state_checkpoint_interval_tokens: Annotated[int, typer.Option(help="Tokens between insurance rungs.")] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at the same time.", min=1)] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens computed in one step, at most.", min=1)] = 16_384,
    conversations: Annotated[int, typer.Option(help="For `synthetic`: how many to make up.", min=1)] = 200,
    scale: Annotated[float, typer.Option(help="For `synthetic`: multiplies every token count.")] = 1.0,
    json_line: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Play a trace of agent conversations through the real scheduler and cache, on a virtual clock.

    No GPU and no model: steps and copies take the time a cost model gives them, everything else is the code that serves. Prints
    where prompt tokens came from (device, host, recomputed) beside the bound, what a cache without limits would have reused, and
    the excess prefill: how much more was computed than the bound needs.

    A trace is a JSON-lines file of conversations (`runs` or `hash_ids` of 64-token blocks), a folder of one JSON file each, or
    Mooncake JSON lines (512-token blocks, sent at their recorded times).

    Examples:

        stepwell replay synthetic --lanes 16 --duration 600

        stepwell replay traces.jsonl.gz --device-tokens 8e6 --host-tokens 33e6 --rung-tokens 6100 --seed 1 --json
    """
    console, errors = Console(), Console(stderr=True)
    sizes = MachineSizes(
        device_tokens=_whole(device_tokens, "--device-tokens"),
        host_tokens=_whole(host_tokens, "--host-tokens"),
        rung_tokens=rung_tokens,
        block=block_size,
        rung_grid=rung_grid,
        interval=state_checkpoint_interval_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    try:
        rules = LaneRules(lanes, start, think_cap, max_prompt, seed)
        found = synthetic(conversations, seed, Shape(scale=scale)) if trace == SYNTHETIC else read_trace(Path(trace))
        summary = _replay(found, rules, Phases(warmup, duration), sizes, errors)
    except StepwellError as error:
        errors.print(f"stepwell replay: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from error
    show(summary, console)
    if json_line:
        print(summary.json_line())


def _replay(trace: Trace, rules: LaneRules, phases: Phases, sizes: MachineSizes, console: Console) -> Summary:
    source: Source = Timeline(trace, rules.max_prompt) if trace.open_loop else Lanes(trace.conversations, rules)
    machine = Machine(sizes, CostModel())
    gc.freeze()  # the trace stays: collections need not walk it again and again
    simulation = Simulation(source, machine, Text(rules.seed), phases)
    wall = timed_run(simulation, console)
    return simulation.ledger.summary(machine.clock.now(), wall, machine.runner.steps, machine.mover.bytes_moved)


def _whole(value: float, flag: str) -> int:
    if not 0 <= value <= 1e15:
        raise typer.BadParameter(f"{flag} must be from 0 to 1e15, not {value}")
    return int(value)
