"""One simulation from start to summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.console import Console

from stepwell.cache.moves import Tier
from stepwell.replay.cost import CostModel
from stepwell.replay.front import Front, Fronted
from stepwell.replay.future import least_prefill
from stepwell.replay.lanes import LaneRules
from stepwell.replay.machine import MachineSizes
from stepwell.replay.policies import machine_for
from stepwell.replay.report import Course, Rungs, Summary, Traffic, summarise, way_name
from stepwell.replay.runner import TRAFFIC_S, Way
from stepwell.replay.setup import source_from
from stepwell.replay.simulate import Imagined, Phases, Simulation, timed_run
from stepwell.replay.text import Text
from stepwell.replay.trace import Trace


@dataclass(frozen=True, slots=True)
class Setting:
    """What is played, and how; `told` says so in the words of the command line. `future`: work out the bound that knows the future.
    `front`: what its calls pass through on their way; None: they reach the scheduler at once."""

    trace: Trace
    rules: LaneRules
    phases: Phases
    costs: CostModel
    idle_gap_cap: float | None = None
    future: bool = False
    told: tuple[tuple[str, str], ...] = ()
    front: Front | None = None


def simulated(setting: Setting, sizes: MachineSizes, console: Console | None = None) -> Summary:
    """Play it on a machine of `sizes`, with a progress bar on `console`. Raises StepwellError."""
    source = source_from(setting.trace, setting.rules, setting.idle_gap_cap)
    if setting.front is not None:
        source = Fronted(source, setting.front)
    machine = machine_for(sizes, setting.costs, setting.rules.seed)
    simulation = Simulation(source, machine, Text(setting.rules.seed), setting.phases)
    wall = timed_run(simulation, console)
    end = machine.clock.now()
    told = tuple((name, sizes.policy if name == "policy" else value) for name, value in setting.told)
    course = Course("simulated", told, end, wall, machine.steps, sizes.policy)
    summary = summarise(simulation.ledger, course, traffic_of(machine, end), rungs_of(simulation, machine))
    return replace(summary, future=least_prefill(simulation.ledger.asked, sizes.memory)) if setting.future else summary


def traffic_of(machine: Imagined, end: float) -> Traffic:
    """What its links noted, up to `end`."""
    count = int(end / TRAFFIC_S) + 1
    ways = sorted(machine.links.bytes_moved.items())
    return Traffic(TRAFFIC_S, tuple((way_name(*way), tuple(at[i] for i in range(count))) for way, at in ways))


def rungs_of(simulation: Simulation, machine: Imagined) -> Rungs:
    """Rungs of the measured phase."""
    now, before = machine.loop.stats(), simulation.at_start
    used = simulation.ledger.resumed
    return Rungs(
        left=now.rungs_left - (before.rungs_left if before else 0),
        skipped=now.rungs_skipped - (before.rungs_skipped if before else 0),
        used=(used[Tier.DEVICE], used[Tier.HOST], used[Tier.DISK]),
        demoted=_copied_below(machine.links.images, simulation.phases.warmup),
    )


def _copied_below(images: Mapping[Way, Mapping[int, int]], start: float) -> int:
    """Images whose copy down ended from `start` on."""
    down = (at for (source, target), at in images.items() if source == Tier.DEVICE and target > source)
    return sum(count for at in down for second, count in at.items() if second * TRAFFIC_S >= start)
