"""Routings of a fleet on one trace: each simulated, then told in one table and one line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

from stepwell.base.errors import ConfigError
from stepwell.replay.compare import cells, failures, figures, head
from stepwell.replay.cost import CostModel
from stepwell.replay.fleet.routing import MOST_REPLICAS, ONE, ROUTINGS, expect_routings
from stepwell.replay.fleet.simulate import FleetSimulation, traffic_of
from stepwell.replay.machine import Machine, MachineSizes
from stepwell.replay.policies import is_own
from stepwell.replay.profile import load_profile
from stepwell.replay.report import Course, Summary, summarise
from stepwell.replay.setup import Params, sizes_from, source_from
from stepwell.replay.simulate import progress_bar
from stepwell.replay.simulated import Setting
from stepwell.replay.sweep import setting_from, side_by_side
from stepwell.replay.terminal import narrow
from stepwell.replay.text import Text


@dataclass(frozen=True, slots=True)
class Fleet:
    """`replicas` machines of these sizes, behind a routing by name."""

    replicas: int
    routing: str
    sizes: MachineSizes

    def machines(self, costs: CostModel) -> list[Machine]:
        """The replicas; for `one`, a single one that has and does as much as all of them."""
        if self.routing == ONE:
            return [Machine(_times(self.sizes, self.replicas), faster(costs, self.replicas))]
        return [Machine(self.sizes, costs) for _ in range(self.replicas)]


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """What came of a routing, over all replicas.

    busiest  tokens of prompts that the busiest replica computed, as a multiple of the mean
    moves    requests that went to another replica than the one before of their session
    """

    summary: Summary
    busiest: float
    moves: int

    @property
    def hit(self) -> float:
        """Share of prompt tokens that were cached, in any tier."""
        admitted = self.summary.admitted
        return self.summary.share(admitted.prompt - admitted.recomputed)


def fleets(params: Params) -> list[Fleet]:
    """One for each routing that was asked for. Raises ConfigError."""
    replicas, names = params["replicas"], expect_routings(params["routing"])
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ConfigError(f"--replicas must be from 1 to {MOST_REPLICAS}, not {replicas}")
    policies = params["policy"]
    if len(policies) != 1 or not is_own(policies[0]):
        raise ConfigError(
            f"--replicas simulates our own engines: give one --policy of theirs, not {' '.join(policies)}"
        )
    if params["bound"] == "future":
        raise ConfigError("--bound future knows one cache: leave it out with --replicas")
    sizes = sizes_from(params, load_profile(params["profile"]), policies[0])
    return [Fleet(replicas, name, sizes) for name in names]


def play(fleet: Fleet, setting: Setting, console: Console | None = None) -> tuple[str, FleetSummary]:
    """Simulate it, behind a progress bar on `console`. Returns the routing's name too. Raises StepwellError."""
    machines = fleet.machines(setting.costs)
    routing = ROUTINGS[fleet.routing][1](machines, setting.rules.seed)
    source = source_from(setting.trace, setting.rules, setting.idle_gap_cap)
    simulation = FleetSimulation(source, machines, routing, Text(setting.rules.seed), setting.phases)
    began = time.perf_counter()
    if console is None:
        simulation.run()
    else:
        with progress_bar(setting.phases, console) as progress:
            simulation.run(progress)
    wall = time.perf_counter() - began
    told = tuple((name, fleet.routing if name == "routing" else value) for name, value in setting.told)
    course = Course("simulated", told, simulation.end, wall, sum(m.steps for m in machines), fleet.sizes.policy)
    summary = summarise(simulation.ledger, course, traffic_of(machines, simulation.end))
    mean = sum(simulation.computed) / len(machines)
    return fleet.routing, FleetSummary(summary, max(simulation.computed) / mean if mean else 1.0, simulation.moves)


def compared(params: dict[str, Any], jobs: int, console: Console) -> Iterator[tuple[str, FleetSummary]]:
    """Each routing with what came of it, as they are done; `params` are those of `replay_command`. Raises StepwellError."""
    wanted = fleets(params)
    setting = setting_from(params, load_profile(params["profile"]))
    if jobs == 1:
        yield from (play(fleet, setting, console) for fleet in wanted)
    else:
        yield from side_by_side(params, setting, [partial(play, fleet) for fleet in wanted], jobs)


def json_line(found: Mapping[str, FleetSummary]) -> str:
    """The figures of each routing, as one line."""
    return json.dumps({"routings": {name: _figures(one) for name, one in found.items()}})


def document(found: Mapping[str, FleetSummary]) -> str:
    """Everything of each routing, as JSON."""
    told = {name: {**one.summary.told(), "fleet": _figures(one)} for name, one in found.items()}
    return json.dumps({"routings": told}, indent=1)


def show(found: Mapping[str, FleetSummary], console: Console) -> None:
    """One row a routing; `of one`: its hit as a share of the hit of one replica with the memory of all."""
    summaries = {name: one.summary for name, one in found.items()}
    names = ("routing", *head(summaries.values())[1:-1])
    whole = found[ONE].hit if ONE in found else 0.0
    rows: list[Sequence[str]] = []
    for name, one in found.items():
        last = (f"{one.hit / whole:.3f}",) if whole else ()
        rows.append((name, *cells(summaries, name)[:-1], f"{one.busiest:.2f}", f"{one.moves:,}", *last))
    console.print(narrow((*names, "busiest", "moves", *(("of one",) if whole else ())), rows))
    if said := failures(summaries):
        console.print(said, highlight=False)


def _figures(one: FleetSummary) -> dict[str, Any]:
    told = {name: value for name, value in figures(one.summary).items() if name != "bytes_moved"}
    return {**told, "hit": round(one.hit, 5), "busiest": round(one.busiest, 3), "moves": one.moves}


def _times(sizes: MachineSizes, count: int) -> MachineSizes:
    """The memory and the requests of so many."""
    return replace(
        sizes,
        device_tokens=sizes.device_tokens * count,
        host_tokens=sizes.host_tokens * count,
        disk_tokens=sizes.disk_tokens * count,
        max_num_seqs=sizes.max_num_seqs * count,
        max_num_batched_tokens=sizes.max_num_batched_tokens * count,
    )


def faster(costs: CostModel, count: int) -> CostModel:
    """A machine that computes and copies as much as `count` of these side by side; the fixed cost of a step is unchanged."""
    return replace(
        costs,
        prefill_tokens_per_s=costs.prefill_tokens_per_s * count,
        attention_s_per_pair=costs.attention_s_per_pair / count,
        sequence_s=costs.sequence_s / count,
        kv_s_per_token=costs.kv_s_per_token / count,
        to_device=costs.to_device * count,
        to_host=costs.to_host * count,
        from_disk=costs.from_disk * count,
        to_disk=costs.to_disk * count,
    )
