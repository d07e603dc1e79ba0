"""What hints of callers gain: one trace, the same requests, with and without them, on the virtual clock.

    python bench/hints.py synthetic --seeds 0 1 2             conversations made up
    python bench/hints.py TRACE --device-tokens 1e6 --host-tokens 4e6

    none      no session ids                       early   session ids and --think-prefetch
    session   session ids                          ttl     session ids, and every call asks for five minutes (cache_ttl)
    end       session ids, and each conversation is ended once it is over (POST /cache/end)

Ends with one line of JSON: shares of prompt tokens by source, prefill beyond what the bound needs, times to first token in ms.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepwell.base.clock import VirtualClock
from stepwell.replay.cost import CostModel
from stepwell.replay.formats import read_trace
from stepwell.replay.lanes import LaneRules, Lanes, TraceRequest
from stepwell.replay.machine import Machine, MachineSizes
from stepwell.replay.report import Course, summarise
from stepwell.replay.simulate import Phases, Simulation
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.text import Text
from stepwell.replay.trace import Trace
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Event, Request
from stepwell.sched.retention import Retention
from stepwell.sched.stats import EngineStats

HINTS = ("none", "session", "early", "ttl", "end")
TTL_S = 300.0


@dataclass(frozen=True, slots=True)
class Hinted:
    """A machine whose requests carry the hints of `kind`."""

    kind: str
    machine: Machine
    engine: EngineLoop

    @property
    def loop(self) -> Hinted:
        return self

    @property
    def clock(self) -> VirtualClock:
        return self.machine.clock

    @property
    def busy(self) -> bool:
        return self.engine.busy

    def passes_until(self, when: float) -> int:
        return self.machine.passes_until(when)

    def submit(self, request: Request) -> None:
        session = None if self.kind == "none" else request.session
        self.engine.submit(replace(request, session=session, keep_s=TTL_S if self.kind == "ttl" else None))

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def step(self, most: int) -> Sequence[Event]:
        return self.engine.step(most)


@dataclass(frozen=True, slots=True)
class Ending:
    """Lanes that tell the engine when a conversation is over: all its streams have ended, and the lane plays the next one."""

    lanes: Lanes
    engine: EngineLoop
    played: dict[int, str] = field(default_factory=dict)

    def due(self, now: float) -> list[TraceRequest]:
        sent = self.lanes.due(now)
        for request in sent:
            before = self.played.get(request.lane, request.session)
            self.played[request.lane] = request.session
            if before != request.session:
                self.engine.end_session("", before)
        return sent

    def next_time(self) -> float | None:
        return self.lanes.next_time()

    def finished(self, request: TraceRequest, now: float) -> None:
        self.lanes.finished(request, now)


def play(kind: str, trace: Trace, sizes: MachineSizes, rules: LaneRules, phases: Phases) -> dict[str, float]:
    """One replay with the hints of `kind`."""
    machine = Machine(sizes, CostModel())
    engine = machine.loop
    assert isinstance(engine, EngineLoop)
    if kind == "early":
        engine.retention = Retention(engine.directory, early=True)
    lanes = Lanes(trace.conversations, rules)
    source = Ending(lanes, engine) if kind == "end" else lanes
    simulation = Simulation(source, Hinted(kind, machine, engine), Text(rules.seed), phases)
    simulation.run()
    end = machine.clock.now()
    found = summarise(simulation.ledger, Course("simulated", (), end, 0.0, machine.steps))
    shares = {name: found.share(tokens) for name, tokens in found.sources()}
    marks = {f"ttft_{mark}": 1000 * found.ttft[mark * len(found.ttft) // 100] for mark in (50, 90, 99)}
    mean = 1000 * sum(found.ttft) / len(found.ttft)
    early = engine.retention.counts.early_prefetches
    return {"requests": found.requests, **shares, "excess": found.excess, **marks, "ttft_mean": mean, "early": early}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="trace file, or `synthetic`")
    parser.add_argument("--device-tokens", type=float, default=3e5)
    parser.add_argument("--host-tokens", type=float, default=1.5e6)
    parser.add_argument("--lanes", type=int, default=12)
    parser.add_argument("--warmup", type=float, default=150.0)
    parser.add_argument("--duration", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--hints", nargs="+", choices=HINTS, default=list(HINTS))
    args = parser.parse_args()
    sizes = MachineSizes(int(args.device_tokens), int(args.host_tokens))
    rows: list[dict[str, str | float]] = []
    for seed in args.seeds:
        made_up = args.trace == "synthetic"
        trace = synthetic(200, seed, Shape()) if made_up else read_trace(Path(args.trace))
        for kind in args.hints:
            found = play(kind, trace, sizes, LaneRules(args.lanes, seed=seed), Phases(args.warmup, args.duration))
            rows.append({"hints": kind, "seed": seed, **found})
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
