"""Kill an engine anywhere in the write path of its disk cache, open the folder again, and see that nothing is wrong.

    python -m stepwell.testing.crash --runs 300 --seed 1

Each run: a child process serves prompts on the tell-tale, over a real disk store that is empty or nearly full, and kills itself
(SIGKILL) as it passes one of the numbered points for the k-th time. The parent opens the folder, judges every record that can be
found, then serves all prompts again and compares each answer with the cold one. The last line is JSON.

Needs fork. The page cache outlives the process, so this says nothing about a loss of power: for that see `FaultyFiles.lose_power`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepwell.base.geometry import Ints
from stepwell.cache.check import check
from stepwell.cache.moves import Tier
from stepwell.store.disk.files import POINTS
from stepwell.store.disk.store import Options
from stepwell.testing.onfiles import VOCAB, OnFiles
from stepwell.testing.shelves import Verdict, judge
from stepwell.testing.telltale import answer

ANSWER = 4
_FILLING = 50  # prompts that fill a folder
_SERVED = 12  # prompts of a run
_STEMS = 6
_LIFE = 120
"""Seconds after which a child that has neither died nor ended is taken to hang: what other threads held at the fork nobody lets go of."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Die as `point` is passed for the `passes`-th time; `full`: in a folder that has no room left."""

    point: str
    passes: int
    full: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run. `died`: at the point, not at the end of its work. `resumed`: tokens that came from disk afterwards."""

    kill: Kill
    died: bool
    verdict: Verdict
    wrong_answers: int
    resumed: int


class Crashes:
    """Runs in folders below `place`, all drawn from `seed`."""

    def __init__(self, place: Path, seed: int = 0) -> None:
        self._place = place
        self._rng = np.random.default_rng(seed)
        self._stems = [self._rng.integers(0, VOCAB, 64, dtype=np.int32) for _ in range(_STEMS)]
        self._filling = [self._prompt(2 * _STEMS) for _ in range(_FILLING)]
        self._filled = [_whole(prompt) for prompt in self._filling]
        self._folders = {full: place / ("full" if full else "empty") for full in (False, True)}
        self._folders[False].mkdir()
        self._fill(self._folders[True])
        self._passes = {full: self._census(full) for full in (False, True)}

    def run(self) -> Run:
        """One life, one death, one judgement."""
        full = bool(self._rng.integers(2))
        reached = sorted(self._passes[full], key=POINTS.index)
        point = reached[int(self._rng.integers(len(reached)))]
        kill = Kill(point, int(self._rng.integers(1, self._passes[full][point] + 1)), full)
        prompts = self._prompts()
        folder = self._copy(full)
        died, wrong = _live(folder, prompts, kill)
        verdict, more, resumed = self._look(folder, prompts, full)
        shutil.rmtree(folder)
        return Run(kill, died, verdict, wrong + more, resumed)

    @property
    def unreached(self) -> tuple[str, ...]:
        """Points that this work does not pass."""
        return tuple(point for point in POINTS if not any(point in passes for passes in self._passes.values()))

    def _look(self, folder: Path, prompts: Sequence[Ints], full: bool) -> tuple[Verdict, int, int]:
        """Judge a folder, then serve its prompts again: the verdict, wrong answers, tokens from disk."""
        served = [*map(_whole, prompts), *(self._filled if full else ())]
        with OnFiles(folder) as engine:
            verdict = judge(folder, engine.store, served)
            wrong = resumed = 0
            for prompt in prompts:
                said, outcome = engine.say(prompt, ANSWER)
                wrong += said != answer(prompt, ANSWER, VOCAB)
                resumed += outcome.disk
            engine.settle()
            check(engine.loop.directory)
            use = engine.loop.directory.use(Tier.DISK)
            dormant = engine.store.catalogue.pages
            assert engine.loop.directory.pools[Tier.DISK].free == use.free + dormant, f"{use}, {dormant} pages dormant"
        return verdict, wrong, resumed

    def _prompt(self, stems: int) -> Ints:
        """Part of a stem, which others share, and something of its own."""
        stem = self._stems[int(self._rng.integers(_STEMS))] if stems == _STEMS else self._rng.integers(0, VOCAB, 64)
        own = self._rng.integers(0, VOCAB, int(self._rng.integers(1, 50)))
        return np.concatenate([stem[: int(self._rng.integers(20, 65))], own]).astype(np.int32)

    def _prompts(self) -> list[Ints]:
        """What a run serves: forks of a few stems, some that an earlier process has seen, and turns that follow each other."""
        prompts = [self._prompt(_STEMS) for _ in range(_SERVED // 2)]
        prompts += [self._filling[int(i)] for i in self._rng.integers(0, _FILLING, _SERVED // 4)]
        turns = [np.concatenate([_whole(p), self._prompt(_STEMS)[:9]]) for p in prompts[: _SERVED // 4]]
        return prompts + turns

    def _fill(self, folder: Path) -> None:
        """A folder whose store has no room left, with what another model has left beside it."""
        with OnFiles(folder) as engine:
            for prompt in self._filling:
                engine.say(prompt, ANSWER)
                engine.settle()
        other = folder / "0123456789abcdef"
        other.mkdir()
        (other / "namespace.json").write_bytes(bytes(1 << 14))

    def _copy(self, full: bool) -> Path:
        folder = self._place / "run"
        shutil.copytree(self._folders[full], folder)
        return folder

    def _census(self, full: bool) -> Counter[str]:
        """How often each point is passed where nobody dies."""
        folder, passed = self._copy(full), Counter[str]()
        with OnFiles(folder, Options(points=lambda name: passed.update([name]))) as engine:
            _serve(engine, self._prompts())
        shutil.rmtree(folder)
        return passed


def _whole(prompt: Ints) -> Ints:
    """A prompt and its answer."""
    return np.concatenate([prompt, np.array(answer(prompt, ANSWER, VOCAB), np.int32)])


def _serve(engine: OnFiles, prompts: Sequence[Ints]) -> int:
    """Serve these, letting every other one be written in full before the next comes; half-way, empty the cache. Returns how many
    answers are wrong."""
    wrong = 0
    for i, prompt in enumerate(prompts):
        if i == len(prompts) // 2:
            engine.loop.reset()
        wrong += engine.say(prompt, ANSWER)[0] != answer(prompt, ANSWER, VOCAB)
        if i % 2:
            engine.settle()
    engine.settle()
    return wrong


def _live(folder: Path, prompts: Sequence[Ints], kill: Kill) -> tuple[bool, int]:
    """A child's life, to its death. Returns whether it died at the point, and how many wrong answers it gave before."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_LIFE)
            os.close(reader)
            _live_and_die(folder, prompts, kill, writer)
        os._exit(1)  # an error: told from a death by its status
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        how = f"did not end within {_LIFE} s" if os.WIFSIGNALED(status) else f"ended with status {status}"
        raise RuntimeError(f"the child of {kill} {how} instead of dying")
    return b"e" not in said, said.count(b"w")


def _live_and_die(folder: Path, prompts: Sequence[Ints], kill: Kill, writer: int) -> None:
    """Serve; a byte for each wrong answer, another before an end that no point has brought about."""
    left = kill.passes

    def point(name: str) -> None:
        nonlocal left
        left -= name == kill.point
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = OnFiles(folder, Options(points=point))
    os.write(writer, b"w" * _serve(engine, prompts))
    os.write(writer, b"e")
    os.kill(os.getpid(), signal.SIGKILL)


def crash(runs: int, seed: int, place: Path, console: Console) -> list[Run]:
    """So many runs, with a bar."""
    crashes = Crashes(place, seed)
    done: list[Run] = []
    with Progress(console=console, auto_refresh=False, transient=True) as bar:  # no thread: it would not survive a fork
        task = bar.add_task("kill and look", total=runs)
        for _ in range(runs):
            done.append(crashes.run())
            bar.update(task, advance=1)
            bar.refresh()
    table = Table("point", "runs", "died there", "records found", "tokens from disk", title=f"{runs} runs, seed {seed}")
    for name in POINTS:
        of = [run for run in done if run.kill.point == name]
        numbers = sum(r.died for r in of), sum(r.verdict.records for r in of), sum(r.resumed for r in of)
        table.add_row(name, str(len(of)), *map(str, numbers))
    console.print(table)
    return done


@contextmanager
def working_folder(parent: str | None = None) -> Iterator[Path]:
    """A folder for the time of a `with`. Memory will do: nothing here outlives more than a process."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="stepwell-crash-", dir=parent or (shared if shared.is_dir() else None)
    ) as place:
        yield Path(place)


@dataclass(frozen=True, slots=True)
class Sums:
    """The last line."""

    runs: int
    wrong_answers: int
    unverified_visible: int
    lost_slots: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Sums:
        return cls(
            len(runs),
            sum(run.wrong_answers for run in runs),
            sum(run.verdict.unverified for run in runs),
            sum(run.verdict.lost_slots for run in runs),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status is 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.testing.crash", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where to work; default: a file system in memory, if there is one")
    options = parser.parse_args(arguments)
    logging.getLogger("stepwell").setLevel(logging.ERROR)  # a full disk says so, and is meant to be full
    with working_folder(options.folder) as place:
        sums = Sums.of(crash(options.runs, options.seed, place, Console(stderr=True)))
    print(json.dumps(asdict(sums)))
    return int(bool(sums.wrong_answers or sums.unverified_visible or sums.lost_slots))


if __name__ == "__main__":
    sys.exit(main())
