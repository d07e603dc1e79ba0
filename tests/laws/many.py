"""Many random runs of the laws over many processes.

    python -m tests.laws.many --runs 10000 --jobs 16 --seconds 540      one line of JSON: runs, seconds, depths, broken seeds
    python -m tests.laws.many --runs 10000 --out runs.json              the same line in a file, too, kept up to date meanwhile
    python -m tests.laws.many --seed 3000442                            that run alone, with its traceback
    python -m tests.laws.many --ranks 2 --runs 10000                    every run over two ranks, with faults on one of them alone

The seed (and --ranks, where it is given) decides everything: ranks, how often a byte goes wrong, and by the driver's own choice all
sizes, faults and the depth of scheduling. So a seed that was broken on one machine can be run again on any other.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from stepwell.store.ranks import JointMover
from stepwell.testing.laws import LawBroken
from tests.laws.driver import Driver, fuzz

RANKS = (1, 1, 2, 1, 3)
CORRUPT = (12, 6, 25, 0)
FIRST = 4_000_000
PATIENCE = 60
"""Seconds of processor time after which a run counts as one that never ends, however busy the machine is; the longest takes a few."""
_TELL = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How one run ended: `law` is 0 for an assertion of the code itself or an unexpected exception, None if nothing broke. `faults` befell
    the copies of `ranks`; `apart` copies failed on one rank and not on another."""

    seed: int
    depth: int
    law: int | None = None
    error: str = ""
    ranks: int = 0
    faults: int = 0
    apart: int = 0


def run(seed: int, waits: int = 16, ranks: int | None = None) -> Driver:
    """The run of `seed`, in which `waits` of a hundred requests follow a grammar: over so many `ranks` with faults on one of them, which
    takes turns, or as the seed will have it. Raises what the laws say."""
    corrupt = CORRUPT[seed % len(CORRUPT)]
    if ranks is None:
        return fuzz(seed, ranks=RANKS[seed % len(RANKS)], corrupt=corrupt, waits=waits)
    return fuzz(seed, ranks=ranks, corrupt=corrupt, waits=waits, faulty=seed // len(CORRUPT) % ranks)


def judge(seed: int, ranks: int | None = None, end: float = float("inf")) -> Ended | None:
    """Run `seed`, for at most `PATIENCE` seconds of processor time; how that ended. None, without a run,
    once the monotonic clock is past `end`."""
    if time.monotonic() > end:
        return None
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        driver = run(seed, ranks=ranks)
    except Exception as error:
        law = error.law if isinstance(error, LawBroken) else 0
        return Ended(seed, -1, law, f"{type(error).__name__}: {error}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    harness = driver.harness
    mover = harness.ranks.mover
    failed = [count.failed for count in mover.counts()] if isinstance(mover, JointMover) else [0]
    faults = sum(sum(mover.tally.values()) for mover in harness.ranks.movers)
    depth = int(harness.loop.config.async_scheduling)
    return Ended(seed, depth, ranks=len(harness.ranks.movers), faults=faults, apart=max(failed) - min(failed))


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no end after {PATIENCE} s")


def many(
    first: int, runs: int, jobs: int, seconds: float, ranks: int | None = None, out: Path | None = None
) -> dict[str, object]:
    """Run the seeds from `first` on, `jobs` at a time; none begins after `seconds`. What the JSON line says; `out` has it every few
    seconds, should this process be ended."""
    began = told = time.monotonic()
    ends: list[Ended] = []
    quiet = (logging.CRITICAL,)  # what audits find in bytes that were made wrong is no news
    with multiprocessing.get_context("spawn").Pool(jobs, logging.disable, quiet) as pool:
        by_time = partial(judge, ranks=ranks, end=began + seconds)
        for ended in pool.imap_unordered(by_time, range(first, first + runs)):
            if ended is None:
                continue
            ends.append(ended)
            if ended.law is not None:
                print(f"seed {ended.seed}: law {ended.law}: {ended.error}", file=sys.stderr, flush=True)
            if out is not None and time.monotonic() - told > _TELL:
                told = time.monotonic()
                out.write_text(json.dumps(sums(first, ends, told - began)))
    found = sums(first, ends, time.monotonic() - began)
    if out is not None:
        out.write_text(json.dumps(found))
    return found


def sums(first: int, ends: Sequence[Ended], seconds: float) -> dict[str, object]:
    """What the JSON line says of the runs that have ended."""
    broken = sorted((one for one in ends if one.law is not None), key=lambda one: one.seed)
    return {
        "first": first,
        "runs": len(ends),
        "seconds": round(seconds, 1),
        "depth_0": sum(one.depth == 0 for one in ends),
        "depth_1": sum(one.depth == 1 for one in ends),
        "several_ranks": sum(one.ranks > 1 for one in ends),
        "faults_on_several": sum(one.ranks > 1 and one.faults > 0 for one in ends),
        "failed_on_some_alone": sum(one.apart > 0 for one in ends),
        "broken": [asdict(one) for one in broken],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="seeds to run (default: 1000)")
    parser.add_argument("--first", type=int, default=FIRST, help=f"the first seed (default: {FIRST})")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--ranks", type=int, help="ranks of every run, one of which has faults (default: by the seed)")
    parser.add_argument("--out", type=Path, help="file for the line of JSON")
    parser.add_argument("--seed", type=int, help="run this one alone, in this process")
    options = parser.parse_args()
    if options.seed is not None:
        run(options.seed, ranks=options.ranks)
        return 0
    told = many(options.first, options.runs, options.jobs, options.seconds, options.ranks, options.out)
    print(json.dumps(told))
    return int(bool(told["broken"]))


if __name__ == "__main__":
    raise SystemExit(main())
