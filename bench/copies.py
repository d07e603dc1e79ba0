"""How fast the copy worker moves pages, against one plain copy of the same bytes in the same run.

    python bench/copies.py                     memory to memory
    python bench/copies.py --device cuda       between the GPU and pinned host memory, against one copy_ of the same bytes

Prints a table, then one line of JSON: throughput of the mover over throughput of the plain copy, by direction, slots in a
move (`one` or `many`) and whether checksums are kept. Slots are scattered at random, as they are after hours of use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepwell.base.geometry import Ints
from stepwell.base.units import format_size, parse_size
from stepwell.cache.moves import Extent, Move, Tier
from stepwell.store.copier import Copier, HostCopier
from stepwell.store.host import HostArena
from stepwell.store.mover import CopyMover

WAYS = {"save": (Tier.DEVICE, Tier.HOST), "load": (Tier.HOST, Tier.DEVICE)}


@dataclass(frozen=True, slots=True)
class Bench:
    """One pair of arenas: a copier between them and plain copies of all their bytes, by direction."""

    copier: Copier
    plain: dict[str, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    slots: int
    verify: bool

    @property
    def key(self) -> str:
        size = "one" if self.slots == 1 else "many"
        return f"{self.way}_{size}" + ("" if self.verify else "_unverified")


def main() -> None:
    options = parse_arguments()
    page = parse_size(options.page_bytes)
    count = max(2, parse_size(options.bytes) // page)
    cases = [Case(way, slots, verify) for verify in (True, False) for way in WAYS for slots in (1, options.many)]
    ratios: dict[str, float] = {}
    speeds: dict[str, tuple[float, float]] = {}
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("copying", total=len(cases) * options.rounds)
        for verify in (True, False):
            bench = cuda_bench(count, page, verify) if options.device == "cuda" else host_bench(count, page, verify)
            with CopyMover(bench.copier, in_flight=options.in_flight) as mover:
                for case in (c for c in cases if c.verify == verify):
                    pairs = [measure(bench, mover, case, count, seed) for seed in range(options.rounds + 1)][1:]
                    progress.advance(task, options.rounds)
                    moved, plain = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
                    speeds[case.key] = (count * page / moved, count * page / plain)
                    ratios[case.key] = round(statistics.median(pair[1] / pair[0] for pair in pairs), 3)
    Console().print(table(cases, speeds, ratios, page))
    print(json.dumps(ratios))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the device arena is")
    parser.add_argument("--page-bytes", default="480KiB", help="bytes of one slot (default 480KiB)")
    parser.add_argument("--bytes", default="256MiB", help="bytes copied in each round (default 256MiB)")
    parser.add_argument("--many", type=int, default=16, help="slots in a move of many (default 16: 256 tokens of KV)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case; medians are reported (default 5)")
    parser.add_argument("--in-flight", type=int, default=4, help="copies in flight at once, on CUDA (default 4)")
    return parser.parse_args()


def host_bench(count: int, page: int, verify: bool) -> Bench:
    """Two arenas in host memory, every byte of them touched."""
    device, host = HostArena(count, page, verify=False), HostArena(count, page, verify=verify)
    every = np.arange(count, dtype=np.int32)
    device.write(every, np.random.default_rng(0).integers(0, 256, (count, page), dtype=np.uint8))
    host.write(every, device.rows)
    other = np.ones_like(device.rows)

    def plain() -> None:
        other[:] = device.rows

    return Bench(HostCopier({Tier.DEVICE: device, Tier.HOST: host}), dict.fromkeys(WAYS, plain))


def cuda_bench(count: int, page: int, verify: bool) -> Bench:
    """A device arena and a pinned host arena."""
    import torch

    from stepwell.store.streams import StreamCopier

    host = HostArena(count, page, pin=True, verify=verify)
    host.write(
        np.arange(count, dtype=np.int32), np.random.default_rng(0).integers(0, 256, (count, page), dtype=np.uint8)
    )
    pages = torch.from_numpy(host.rows).cuda()
    other = torch.empty((count, page), dtype=torch.uint8, pin_memory=True)
    other_pages = torch.empty_like(pages)

    def plain(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        return run

    return Bench(StreamCopier(pages, host), {"save": plain(other, pages), "load": plain(other_pages, other)})


def measure(bench: Bench, mover: CopyMover, case: Case, count: int, seed: int) -> tuple[float, float]:
    """Seconds in which the mover copies every slot once, and seconds of one plain copy, one right after the other."""
    moves = list(cut(case, count, seed))
    with stopwatch() as moved:
        mover.start(moves)
        mover.drain()
    bad = [report for report in mover.poll() if not report.ok]
    if bad:
        raise SystemExit(f"{len(bad)} of {len(moves)} copies failed: {bad[0].error}")
    with stopwatch() as plain:
        bench.plain[case.way]()
    return moved[0], plain[0]


def cut(case: Case, count: int, seed: int) -> Iterator[Move]:
    """Moves that together copy every slot once, at random places on both sides."""
    rng = np.random.default_rng(seed)
    source, target = (rng.permutation(count).astype(np.int32) for _ in range(2))
    tiers = WAYS[case.way]
    for ticket, first in enumerate(range(0, count, case.slots)):
        slots: list[Ints] = [side[first : first + case.slots] for side in (source, target)]
        yield Move(ticket, "kv", Extent(tiers[0], slots[0]), Extent(tiers[1], slots[1]), 0)


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    seconds: list[float] = []
    begun = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - begun)


def table(cases: list[Case], speeds: dict[str, tuple[float, float]], ratios: dict[str, float], page: int) -> Table:
    result = Table(title=f"copies of {format_size(page)} pages, scattered")
    for name in ("direction", "slots a move", "checksums", "mover", "plain copy", "ratio"):
        result.add_column(name, justify="left" if name == "direction" else "right")
    for case in cases:
        moved, plain = (f"{speed / 2**30:.1f} GiB/s" for speed in speeds[case.key])
        verified = "yes" if case.verify else "no"
        result.add_row(case.way, str(case.slots), verified, moved, plain, f"{ratios[case.key]:.2f}")
    return result


if __name__ == "__main__":
    main()
