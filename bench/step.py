"""What one decode step of scheduling costs, on the tell-tale model and without its time.

    python bench/step.py                    256 and 1,024 sequences: half a minute
    python bench/step.py --seqs 64 256

Sequences with short prompts decode side by side; nobody arrives and nobody ends. A step is a whole turn of the engine's loop:
reports, admission, building, publishing, copies ahead of need, events; the time that the runner takes is left out. Prompts differ in
length, so that each step has its share of pages taken, blocks published and rolling rungs left.

Times are of the processor, of the thread that decides. Each figure is the mean over a whole period of as many steps
as a block has tokens, and the least of `--rounds` such periods: a machine that does other things makes a period longer, never shorter.

Then the same with 64 sequences and asynchronous scheduling, beside a device that takes 3 ms a step: how long a turn keeps the host busy,
and which share of that the step before has hidden. Steps cross the wire between control and worker, so that writing and reading them
counts.

Ends with one line of JSON: `step_us_N` for N sequences, `build_us_64`, `hidden_share` and `wire_bytes_64`, the mean of a step.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell.base.clock import WallClock
from stepwell.cache.config import CacheConfig
from stepwell.engine.wire.link import Answer, Endpoint, WiredRunner
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.step import Pass, Runner, Step, StepResult
from stepwell.testing import telltale
from stepwell.testing.faults import InstantMover

BLOCK = 16
VOCAB = 1000
PROMPT = 33


@dataclass(slots=True, eq=False)
class Timed:
    """A runner that counts the processor time it takes."""

    inner: Runner
    seconds: float = 0.0

    def launch(self, step: Step) -> Pass:
        began = time.thread_time()
        result = self.inner.launch(step)
        self.seconds += time.thread_time() - began
        return result


@dataclass(frozen=True, slots=True)
class Late:
    """A step of a device: its result is there at `ends`."""

    device: Device
    ends: float
    told: StepResult

    def result(self) -> StepResult:
        self.device.waited += max(0.0, self.ends - self.device.now())
        return self.told


@dataclass(slots=True, eq=False)
class Device:
    """A runner that takes `step_s` a step beside the host, and draws the same token always.

    Its clock is the processor time of the thread, and what the thread would have waited: other processes do not count.
    """

    step_s: float
    waited: float = 0.0
    free_at: float = 0.0

    def now(self) -> float:
        return time.thread_time() + self.waited

    def launch(self, step: Step) -> Late:
        self.free_at = max(self.now(), self.free_at) + self.step_s
        return Late(self, self.free_at, StepResult(((7,),) * len(step)))


class Counting(Endpoint):
    """A worker that counts the bytes of its steps."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner, InstantMover(lambda move: None))
        self.bytes = self.steps = 0

    def launch(self, data: bytes) -> Answer:
        self.bytes += len(data)
        self.steps += 1
        return super().launch(data)


def measure_hidden(seqs: int, rounds: int, step_s: float = 3e-3) -> tuple[float, float, float]:
    """µs that a turn keeps the host busy beside a device, the share of it that the device's own time hides, and bytes of a step."""
    device = Device(step_s)
    wire = Counting(device)
    loop = decoding(seqs, rounds, WiredRunner(wire), ahead=True)
    wire.bytes = wire.steps = 0
    host, exposed = [], []
    for _ in range(rounds):
        waited, began = device.waited, device.now()
        for _ in range(BLOCK):
            loop.step()
        took = (device.now() - began) / BLOCK
        exposed.append(max(0.0, took - step_s))
        host.append(took - (device.waited - waited) / BLOCK)
    return 1e6 * min(host), 1 - sum(exposed) / sum(host), wire.bytes / wire.steps


def measure(seqs: int, rounds: int) -> float:
    """µs of scheduling that a decode step of `seqs` sequences takes."""
    sizes = telltale.geometry(BLOCK, 4 * BLOCK, 2)
    runner = Timed(telltale.TellTaleRunner(telltale.Memory(sizes, _pages(seqs, rounds), 0, seqs), sizes, VOCAB))
    loop = decoding(seqs, rounds, runner)
    return min(_period(loop, runner) for _ in range(rounds))


def decoding(seqs: int, rounds: int, runner: Runner, ahead: bool = False) -> EngineLoop:
    """A loop in which that many sequences are decoding, with enough to say for all rounds."""
    rules = CacheConfig(telltale.geometry(BLOCK, 4 * BLOCK, 2), _pages(seqs, rounds))
    config = SchedConfig(seqs, max(4096, 2 * seqs), vocab=VOCAB, decode_rung_tokens=BLOCK, async_scheduling=ahead)
    loop = EngineLoop(rules, config, runner, InstantMover(lambda move: None), WallClock())
    rng = np.random.default_rng(0)
    for number in range(seqs):
        prompt = rng.integers(0, VOCAB, PROMPT + number % BLOCK).astype(np.int32)
        loop.submit(Request(f"{number}", prompt, SamplingParams(_tokens(rounds))))
    while loop.stats().sampled_tokens < seqs * BLOCK:
        loop.step()
    assert loop.stats().running == seqs
    return loop


def _tokens(rounds: int) -> int:
    return PROMPT + 2 * BLOCK + (rounds + 2) * BLOCK


def _pages(seqs: int, rounds: int) -> int:
    return seqs * (_tokens(rounds) // BLOCK + 6)


def _period(loop: EngineLoop, runner: Timed) -> float:
    """µs a step, mean of as many steps as a block has tokens."""
    before, began = runner.seconds, time.thread_time()
    for _ in range(BLOCK):
        loop.step()
    return 1e6 * (time.thread_time() - began - (runner.seconds - before)) / BLOCK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seqs", type=int, nargs="+", default=[256, 1024], help="sequences that decode (default 256 1024)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="periods, of which the fastest counts (default 5)")
    options = parser.parse_args()
    if min(options.rounds, *options.seqs) < 1:
        parser.error("--seqs and --rounds must be at least 1")
    found = {seqs: measure(seqs, options.rounds) for seqs in options.seqs}
    table = Table("sequences", "µs a step", "µs a sequence", title="Scheduling of one decode step")
    for seqs, us in found.items():
        table.add_row(f"{seqs:,}", f"{us:,.0f}", f"{us / seqs:.2f}")
    Console().print(table)
    host, hidden, size = measure_hidden(64, options.rounds)
    print(f"64 beside a device that takes 3 ms: {host:,.0f} µs and {size:,.0f} bytes a step; {hidden:.1%} is hidden")
    figures = {f"step_us_{seqs}": round(us, 1) for seqs, us in found.items()}
    figures |= {"build_us_64": round(host, 1), "hidden_share": round(hidden, 3), "wire_bytes_64": round(size)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
