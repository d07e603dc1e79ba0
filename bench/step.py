"""What one decode step of scheduling costs, on the tell-tale model and without its time.

    python bench/step.py                    256 and 1,024 sequences: half a minute
    python bench/step.py --seqs 64 256

Sequences with short prompts decode side by side; nobody arrives and nobody ends. A step is a whole turn of the engine's loop:
reports, admission, building, publishing, copies ahead of need, events; the time that the runner takes is left out. Prompts differ in
length, so that each step has its share of pages taken, blocks published and rolling rungs left.

Times are of the processor, of the thread that decides. Each figure is the mean over a whole period of as many steps
as a block has tokens, and the least of `--rounds` such periods: a machine that does other things makes a period longer, never shorter.

Ends with one line of JSON: `step_us_N` for N sequences.
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
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.step import Pass, Runner, Step
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


def measure(seqs: int, rounds: int) -> float:
    """µs of scheduling that a decode step of `seqs` sequences takes."""
    sizes = telltale.geometry(BLOCK, 4 * BLOCK, 2)
    tokens = PROMPT + 2 * BLOCK + (rounds + 2) * BLOCK
    pages = seqs * (tokens // BLOCK + 6)
    memory = telltale.Memory(sizes, pages, 0, seqs)
    runner = Timed(telltale.TellTaleRunner(memory, sizes, VOCAB))
    rules = CacheConfig(sizes, pages)
    config = SchedConfig(seqs, max(4096, 2 * seqs), vocab=VOCAB, decode_rung_tokens=BLOCK)
    loop = EngineLoop(rules, config, runner, InstantMover(memory.copy), WallClock())
    rng = np.random.default_rng(0)
    for number in range(seqs):
        prompt = rng.integers(0, VOCAB, PROMPT + number % BLOCK).astype(np.int32)
        loop.submit(Request(f"{number}", prompt, SamplingParams(tokens)))
    while loop.stats().sampled_tokens < seqs * BLOCK:
        loop.step()
    assert loop.stats().running == seqs
    return min(_period(loop, runner) for _ in range(rounds))


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
    print(json.dumps({f"step_us_{seqs}": round(us, 1) for seqs, us in found.items()}))


if __name__ == "__main__":
    main()
