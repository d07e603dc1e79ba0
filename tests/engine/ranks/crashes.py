"""Kill a rank at every point of a step and of a write to disk; then start again on the same disk, and see that nothing is wrong.

    python -m tests.engine.ranks.crashes --runs 40 --seed 1           one line of JSON: lives, deaths by point, what was wrong

Two ranks are real processes. A life begins on the disk cache that the lives before it have left, asks prompts that they were asked, and
more, and ends as one rank kills itself at a point of a write (`--fault crash:…`), or is killed at a point of a step. Each answer is
compared with the cold one of an engine in one process. After a death: the error names the rank and comes within seconds, no process and no
folder of sockets is left. Every wait has an end: a life that hangs is ended with a traceback of all threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from stepwell.base.errors import RankError
from stepwell.base.geometry import Ints
from stepwell.engine.llm import LLM
from stepwell.engine.process import private
from stepwell.engine.ranks.processes import RankProcesses
from stepwell.engine.ranks.wire import STEP
from stepwell.sched.request import SamplingParams
from stepwell.store.disk.files import POINTS
from stepwell.testing.checkpoint import write_checkpoint

RANKS = 2
VOCAB = 513
ANSWER = SamplingParams(max_tokens=8, ignore_eos=True)
STEP_POINTS = ("step.before", "step.sent", "step.computing", "step.answered", "copies.before", "copies.sent", "heard")
"""Of control's work: a step is about to be sent, is sent, is being computed, is answered; copies alike; reports may have been heard."""
LEFT_OUT = (
    "remove.before",
    "remove.after",
    "compact.before",
    "compact.copied",
    "compact.synced",
    "compact.committed",
    "compact.unlinked",
)
"""Points that so few prompts do not pass: no room is short, and no other model has left anything."""
LIMIT = 5.0
"""Seconds within which the engine ends, as the command judges. Tests do not: a busy machine may take longer."""
_HANGS = 240.0
_NEW = 5
"""Prompts of a life that nobody has asked before."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End `rank` as `point` is passed for the `passes`-th time. A point of a write is the last rank's."""

    point: str
    passes: int
    rank: int = RANKS - 1

    @property
    def faults(self) -> tuple[str, ...]:
        return (f"crash:{self.point}:{self.passes}",) if self.point in POINTS else ()


@dataclass(slots=True)
class Lives:
    """What came of all of them: deaths by point, answers that differ from the cold ones, other faults; tokens that came from disk.

    `prompts` and their `cold` answers are of the lives in turn, `_NEW` each.
    """

    model: Path
    disk: Path
    prompts: Sequence[Ints]
    cold: Sequence[tuple[int, ...]]
    begun: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    lived: int = 0
    wrong: int = 0
    resumed: int = 0
    slowest: float = 0.0
    faults: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, place: Path, lives: int, seed: int = 0) -> Lives:
        """So many, the first on an empty disk."""
        model = write_checkpoint(place / "model", hidden=128, layers=4, vocab=VOCAB)
        rng = np.random.default_rng(seed)
        stems = [rng.integers(3, VOCAB, 130) for _ in range(3)]
        prompts = [
            np.concatenate([stems[i % 3], rng.integers(3, VOCAB, 20 + i % 40)]).astype(np.int32)
            for i in range(_NEW * lives)
        ]
        with _engine(model) as llm:
            cold = [llm.generate(p, ANSWER, read_cache=False, write_cache=False)[0].token_ids for p in prompts]
        return cls(model, place / "disk", prompts, cold)

    def live(self, kill: Kill | None, faults: tuple[str, ...] = ()) -> None:
        """One life, from the start to its death, or to its end where `kill` is None or does not come about. Other `faults` befall the last
        rank."""
        with _folders() as folder, killing(kill) as killed:
            faults += () if kill is None else kill.faults
            llm = _engine(self.model, RANKS, disk_cache=f"{self.disk}:64MiB", faults=faults)
            try:
                for i in self._asked():
                    (said,) = llm.generate(self.prompts[i], ANSWER)
                    self.wrong += said.token_ids != self.cold[i]
                    self.resumed += said.outcome.disk
                    loop = llm._open_loop()
                    while loop.busy:  # until all is on disk
                        loop.step()
                llm.close()
                self.lived += 1
            except RankError as error:
                self._died(kill, str(error), time.monotonic() - (killed.at or killed.well))
            finally:
                with suppress(RankError):
                    llm.close(0.0)
            self._look(folder)

    def _asked(self) -> list[int]:
        """What this life is asked: the last of the life before, its own, and the first of that life."""
        first = _NEW * self.begun
        self.begun += 1
        before = list(range(max(0, first - _NEW), first))
        return before[-2:] + list(range(first, first + _NEW)) + before[:2]

    def _died(self, kill: Kill | None, told: str, seconds: float) -> None:
        if kill is None or told != f"rank {kill.rank} was killed by signal 9":
            self.faults.append(f"{kill}: {told}")
            return
        self.deaths[kill.point] += 1
        self.slowest = max(self.slowest, seconds)

    def _look(self, folder: Path) -> None:
        if left := _ranks_of(os.getpid()):
            self.faults.append(f"processes {left} are left")
        if left_files := list(folder.iterdir()):
            self.faults.append(f"{left_files} are left")

    def sums(self) -> dict[str, Any]:
        return {
            "lived": self.lived,
            "died": sum(self.deaths.values()),
            "points": dict(self.deaths),
            "wrong_answers": self.wrong,
            "tokens_from_disk": self.resumed,
            "slowest_end_s": round(self.slowest, 2),
            "faults": self.faults,
        }


@dataclass(slots=True)
class Killed:
    """When the rank was killed, by the monotonic clock; None: it has not been, or killed itself. All were `well` at that time."""

    at: float | None = None
    well: float = 0.0


@contextmanager
def killing(kill: Kill | None) -> Iterator[Killed]:
    """Within it, engines lose a rank at this point of a step."""
    killed = Killed()
    left = kill.passes if kill is not None else 0

    def end(processes: RankProcesses) -> None:
        assert kill is not None
        killed.at = time.monotonic()
        os.kill(processes._processes[kill.rank].pid, signal.SIGKILL)

    def point(processes: RankProcesses, name: str) -> None:
        nonlocal left
        here = kill is not None and name == kill.point
        left -= here
        if here and not left:
            assert kill is not None
            if name == "step.computing":
                threading.Timer(0.002 * (kill.passes % 5), end, [processes]).start()
            else:
                end(processes)

    send, result, hear = RankProcesses.send, RankProcesses.result, RankProcesses.hear

    def sending(self: RankProcesses, kind: int, *data: bytes) -> None:
        what = "step" if kind == STEP else "copies"
        point(self, f"{what}.before")
        send(self, kind, *data)
        point(self, f"{what}.sent")
        point(self, f"{what}.computing")

    def answered(self: RankProcesses) -> bytes:
        found = result(self)
        point(self, "step.answered")
        return found

    def hearing(self: RankProcesses, seconds: float) -> bool:
        if all(_runs(process.pid) for process in self._processes):
            killed.well = time.monotonic()
        found = hear(self, seconds)
        point(self, "heard")
        return found

    with (
        patch.object(RankProcesses, "send", sending),
        patch.object(RankProcesses, "result", answered),
        patch.object(RankProcesses, "hear", hearing),
    ):
        yield killed


def drawn(rng: random.Random) -> Kill:
    """Any point, any rank, sooner or later."""
    point = rng.choice([*STEP_POINTS, *(point for point in POINTS if point not in LEFT_OUT)])
    if point in POINTS:
        return Kill(point, rng.choice([1, 1, 2, 3]))
    return Kill(point, rng.choice([1, 2, 5, 9, 17]), rng.randrange(RANKS))


def _engine(model: Path, ranks: int = 1, **more: Any) -> LLM:
    return LLM(
        str(model),
        tensor_parallel_size=ranks,
        device="cpu",
        dtype="float32",
        device_memory=(1 << 21) // ranks,
        host_memory="4MiB",
        max_num_seqs=2,
        max_num_batched_tokens=128,
        max_model_len=400,
        min_load_tokens=16,
        disk_write_when="idle",
        deterministic=True,
        **more,
    )


def _ranks_of(parent: int) -> list[int]:
    """Processes of ranks that `parent` has started and not waited for."""
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        for pid in (task / "children").read_text().split():
            with suppress(OSError):
                if b"stepwell.engine.ranks.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def _runs(pid: int) -> bool:
    """Whether a process has not ended, whoever has noticed."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextmanager
def _folders() -> Iterator[Path]:
    """A place of its own for folders of sockets, to see what is left there."""
    with tempfile.TemporaryDirectory(prefix="stepwell-") as place, patch.object(private, "_within", place):
        yield Path(place)


@contextmanager
def _no_hanging() -> Iterator[None]:
    faulthandler.dump_traceback_later(_HANGS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """Exit status 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="lives that are to end early (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no life after so many seconds")
    options = parser.parse_args()
    rng, end = random.Random(options.seed), time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="stepwell-") as place:
        lives = Lives.of(Path(place), options.runs + 1, options.seed)
        for _ in range(options.runs):
            if time.monotonic() < end:
                with _no_hanging():
                    lives.live(drawn(rng))
        with _no_hanging():
            lives.live(None)
        sums = lives.sums()
    print(json.dumps(sums))
    return int(bool(sums["wrong_answers"] or sums["faults"] or lives.slowest > LIMIT))


if __name__ == "__main__":
    raise SystemExit(main())
