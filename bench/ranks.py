"""What a step costs on its way to the processes of ranks and back, without a model: nothing is computed.

    python bench/ranks.py                    1 and 64 decodes, one rank and two: ten seconds on quiet cores
    python bench/ranks.py --ranks 2 --steps 2000

Control is the one that serves (`RankProcesses`, `RanksRunner`), and so is each rank's end (`RankService`); behind it a runner answers at
once. Means are of `--steps` steps, one after the other, and the least of `--rounds` such runs; medians and 99th percentiles are of all
steps. Beside it stands the same step in one process, written and read as bytes (`WiredRunner`), which the wall time of ranks is compared
with.

Ends with one line of JSON, for N decodes and R ranks: `wired_us_N`, `ranks_R_us_N` (wall), `control_R_us_N` (processor time of control's
thread), `send_R_us_N` (until control has sent the step: median, 99th percentile) and `heard_R_us_N` (until the last rank is about to
launch it: the same).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from stepwell.base.children import command
from stepwell.cache.config import Costs
from stepwell.engine.config import EngineConfig
from stepwell.engine.ranks import processes as ranks
from stepwell.engine.ranks.channel import Channel
from stepwell.engine.ranks.heartbeat import Heartbeat, Tally
from stepwell.engine.ranks.masks import SentMasks
from stepwell.engine.ranks.service import RankService
from stepwell.engine.ranks.shared import RanksRunner
from stepwell.engine.ranks.wire import TOLD, Begin, Ready, State, encode
from stepwell.engine.wire.link import Endpoint, WiredRunner
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Decodes, Runner, Step, StepResult
from stepwell.testing.faults import ManualMover, no_copy

VOCAB = 1000
_STATE = State({}, {}, None, True, None)
_GREEDY = SamplingParams()
_TIMES = "STEPWELL_RANKS_TIMES"


@dataclass(frozen=True, slots=True)
class Answered:
    told: StepResult

    def result(self) -> StepResult:
        return self.told


@dataclass(frozen=True, slots=True)
class Instant:
    """A runner that draws the same token for everyone, at once. `launched`: when, in ns of the machine's monotonic clock."""

    launched: list[int] = field(default_factory=list)

    def launch(self, step: Step) -> Answered:
        self.launched.append(time.monotonic_ns())
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
            params=(_GREEDY,) * self.rows,
            indices=np.full(self.rows, self.position - 900, np.int32),
        )
        self._known = len(self._tables[0])
        return Step((), decodes)


def serve_rank() -> None:
    """A rank's process without a model: all of its end of the wire, and nothing behind it."""
    begin = msgspec.json.decode(sys.stdin.buffer.readline(), type=Begin)
    control, tally = Channel.of(begin.orders), Tally()
    control.send(TOLD, encode(Ready(1, 1, 1, Costs(), (), "", _STATE, (), 0.0)))
    Heartbeat(Channel.of(begin.signs), tally, lambda: _STATE)
    runner = Instant()
    endpoint = Endpoint(runner, ManualMover(no_copy))
    RankService(begin.rank, endpoint, SentMasks(VOCAB), None, None, tally, control).run()
    np.save(Path(os.environ[_TIMES], f"{begin.rank}.npy"), np.array(runner.launched))


@dataclass(slots=True)
class Timed:
    """µs of a step, and of this thread's processor time for it, by round; when each was begun, and sent, in ns."""

    wall: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, runner: Runner, rows: int, count: int, rounds: int) -> Timed:
        steps, timed = Steps(rows), cls()
        for _ in range(rounds):
            prepared = [steps.next() for _ in range(count)]
            began, worked = time.perf_counter(), time.thread_time()
            for step in prepared:
                timed.begun.append(time.monotonic_ns())
                computing = runner.launch(step)
                timed.sent.append(time.monotonic_ns())
                computing.result()
            timed.wall.append(1e6 * (time.perf_counter() - began) / count)
            timed.own.append(1e6 * (time.thread_time() - worked) / count)
        return timed

    def until(self, then: np.ndarray) -> list[float]:
        """Median and 99th percentile, µs, of the time until `then`, ns."""
        return [round(float(at), 1) for at in np.percentile((then - np.array(self.begun)) / 1e3, (50, 99))]


class NoMasks:
    """No answer is held to a grammar."""

    def allowed(self, request_id: str, params: SamplingParams, answer: object) -> None:
        return None


def measured(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    each = options.steps, options.rounds
    for rows in options.decodes:
        wired = WiredRunner(Endpoint(Instant(), ManualMover(no_copy)))
        found[f"wired_us_{rows}"] = round(min(Timed.of(wired, rows, *each).wall), 1)
    here = [*command("no module")[:1], "-P", str(Path(__file__).resolve()), "--serve-rank"]
    for count in options.ranks:
        config = EngineConfig("none", device="cpu", tensor_parallel_size=count)
        with TemporaryDirectory() as place:
            os.environ[_TIMES] = place
            with patch.object(ranks, "command", lambda module: here), ranks.RankProcesses(config, 30, "") as processes:
                processes.start(lambda phase: None)
                runner = RanksRunner(processes, NoMasks())
                timed = [Timed.of(runner, rows, *each) for rows in options.decodes]
            launched = [np.load(path) for path in sorted(Path(place).iterdir())]
        for at, (rows, one) in enumerate(zip(options.decodes, timed, strict=True)):
            steps = slice(at * len(one.begun), (at + 1) * len(one.begun))
            found |= {
                f"ranks_{count}_us_{rows}": round(min(one.wall), 1),
                f"control_{count}_us_{rows}": round(min(one.own), 1),
                f"send_{count}_us_{rows}": one.until(np.array(one.sent)),
                f"heard_{count}_us_{rows}": one.until(np.max([times[steps] for times in launched], axis=0)),
            }
    return found


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
        print(f"{name:24} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
