"""What a step costs on its way to the processes of ranks and back, without a model: nothing is computed.

    python bench/ranks.py                    1 and 64 decodes, one rank and two: ten seconds on quiet cores
    python bench/ranks.py --ranks 2 --steps 2000

Control is the one that serves (`RankProcesses`, `RanksRunner`), and so is each rank's end (`RankService`); behind it a runner answers at
once. Each figure is the mean of `--steps` steps, one after the other, and the least of `--rounds` such runs. Beside it stands the same
step in one process, written and read as bytes (`WiredRunner`), which the wall time of ranks is compared with.

Ends with one line of JSON: `wired_us_N`, `ranks_R_us_N` (wall) and `control_R_us_N` (processor time of control's thread) for N decodes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import zmq

from stepwell.base.children import command
from stepwell.cache.config import Costs
from stepwell.engine.config import EngineConfig
from stepwell.engine.ranks import processes as ranks
from stepwell.engine.ranks.heartbeat import Heartbeat, Tally
from stepwell.engine.ranks.masks import SentMasks
from stepwell.engine.ranks.service import RankService
from stepwell.engine.ranks.shared import RanksRunner
from stepwell.engine.ranks.wire import TOLD, Begin, Ready, State, answers_address, encode, orders_address, signs_address
from stepwell.engine.wire.link import Endpoint, WiredRunner
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Decodes, Runner, Step, StepResult
from stepwell.testing.faults import ManualMover, no_copy

VOCAB = 1000
_STATE = State({}, {}, None, True, None)


@dataclass(frozen=True, slots=True)
class Answered:
    told: StepResult

    def result(self) -> StepResult:
        return self.told


@dataclass(frozen=True, slots=True)
class Instant:
    """A runner that draws the same token for everyone, at once."""

    def launch(self, step: Step) -> Answered:
        return Answered(StepResult(((7,),) * len(step)))


@dataclass(slots=True)
class Steps:
    """Decodes that go on: each step is that of an engine whose sequences have come one token further."""

    rows: int
    position: int = 1000
    _tables: list[np.ndarray] = field(default_factory=list)
    _known: int = 0

    def next(self) -> Step:
        every = np.arange(self.rows, dtype=np.int32)
        if not self._tables:
            self._tables = [np.arange(row, row + 200, dtype=np.int32) for row in range(self.rows)]
        self.position += 1
        decodes = Decodes(
            names=tuple(f"r{row}" for row in range(self.rows)),
            slots=every,
            roots=np.zeros(self.rows, np.int64),
            starts=np.full(self.rows, self.position, np.int32),
            tokens=every,
            tables=tuple(self._tables),
            known=np.full(self.rows, self._known, np.int32),
            params=(SamplingParams(),) * self.rows,
            indices=np.full(self.rows, self.position - 900, np.int32),
        )
        self._known = len(self._tables[0])
        return Step((), decodes)


def serve_rank() -> None:
    """A rank's process without a model: all of its end of the wire, and nothing behind it."""
    begin = msgspec.json.decode(sys.stdin.buffer.readline(), type=Begin)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def connected(address: str) -> Callable[[], zmq.Socket[bytes]]:
        def connect() -> zmq.Socket[bytes]:
            socket = context.socket(zmq.PUSH)
            socket.set_hwm(0)
            socket.connect(address)
            return socket

        return connect

    answers, tally = connected(answers_address(begin.directory)), Tally()
    orders = context.socket(zmq.PULL)
    orders.bind(orders_address(begin.directory, begin.rank))
    ready = Ready(1, 1, 1, Costs(), (), "", _STATE, (), 0.0)
    answers().send_multipart((TOLD, bytes([begin.rank]), encode(ready)))
    Heartbeat(connected(signs_address(begin.directory)), begin.rank, tally, lambda: _STATE)
    endpoint = Endpoint(Instant(), ManualMover(no_copy))
    RankService(begin.rank, endpoint, SentMasks(VOCAB), None, None, tally, orders, answers).run()


def timed(runner: Runner, rows: int, count: int, rounds: int) -> tuple[float, float]:
    """µs of a step, and of this thread's processor time for it."""
    steps, wall, own = Steps(rows), [], []
    for _ in range(rounds):
        prepared = [steps.next() for _ in range(count)]
        began, worked = time.perf_counter(), time.thread_time()
        for step in prepared:
            runner.launch(step).result()
        wall.append((time.perf_counter() - began) / count)
        own.append((time.thread_time() - worked) / count)
    return 1e6 * min(wall), 1e6 * min(own)


class NoMasks:
    """No answer is held to a grammar."""

    def allowed(self, request_id: str, params: SamplingParams, answer: object) -> None:
        return None


def measured(options: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    each = options.steps, options.rounds
    for rows in options.decodes:
        wired = WiredRunner(Endpoint(Instant(), ManualMover(no_copy)))
        found[f"wired_us_{rows}"] = timed(wired, rows, *each)[0]
    here = [*command("no module")[:1], "-P", str(Path(__file__).resolve()), "--serve-rank"]
    for count in options.ranks:
        config = EngineConfig("none", device="cpu", tensor_parallel_size=count)
        with patch.object(ranks, "command", lambda module: here), ranks.RankProcesses(config, 30, "text") as processes:
            processes.start(lambda phase: None)
            runner = RanksRunner(processes, NoMasks())
            for rows in options.decodes:
                wall, own = timed(runner, rows, *each)
                found |= {f"ranks_{count}_us_{rows}": wall, f"control_{count}_us_{rows}": own}
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--decodes", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--serve-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_rank:
        serve_rank()
        os._exit(0)  # its threads wait for ever
    found = measured(options)
    for name, value in found.items():
        print(f"{name:24} {value:8.1f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
