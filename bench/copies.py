"""How fast the copy worker moves pages, against one plain copy of the same bytes in the same run.

    python bench/copies.py                                memory to memory
    python bench/copies.py --device cuda                  between the GPU and pinned host memory, against one copy_ of the same bytes
    python bench/copies.py --device cuda --beside D M     the same, and what copies cost decode steps of these shapes (gpu_backend.py)

Prints a table, then one line of JSON: throughput of the mover over throughput of the plain copy, by direction, slots in a
move (`one` or `many`) and whether checksums are kept. Slots are scattered at random, as they are after hours of use. With CUDA also
`restore_over_link` and `demote_over_link` (many slots, no checksums), and with --beside, by shape, `decode_ms` alone, `decode_slowed_by`
saves that move `saves_gib_s` meanwhile (a share of the step at --rows rows), and the same of loads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepwell.base.geometry import Ints
from stepwell.base.units import format_size, parse_size
from stepwell.cache.moves import Extent, Move, Tier
from stepwell.store.copier import Copier, HostCopier
from stepwell.store.host import HostArena, pinned
from stepwell.store.mover import IN_FLIGHT, CopyMover
from stepwell.store.streams import TOGETHER

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
    count, together = max(2, parse_size(options.bytes) // page), parse_size(options.together)
    cases = [Case(way, slots, verify) for verify in (True, False) for way in WAYS for slots in (1, options.many)]
    ratios: dict[str, float] = {}
    speeds: dict[str, tuple[float, float]] = {}
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("copying", total=len(cases) * options.rounds)
        for verify in (True, False):
            bench = (
                cuda_bench(count, page, verify, together)
                if options.device == "cuda"
                else host_bench(count, page, verify)
            )
            with CopyMover(bench.copier, in_flight=options.in_flight) as mover:
                for case in (c for c in cases if c.verify == verify):
                    pairs = [measure(bench, mover, case, count, seed) for seed in range(options.rounds + 1)][1:]
                    progress.advance(task, options.rounds)
                    moved, plain = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
                    speeds[case.key] = (count * page / moved, count * page / plain)
                    ratios[case.key] = round(statistics.median(pair[1] / pair[0] for pair in pairs), 3)
    Console().print(table(cases, speeds, ratios, page))
    told: dict[str, object] = dict(ratios)
    if options.device == "cuda":
        told |= {
            "restore_over_link": ratios["load_many_unverified"],
            "demote_over_link": ratios["save_many_unverified"],
            "link_gib_s": {way: round(speeds[f"{way}_many_unverified"][1] / 2**30, 2) for way in WAYS},
        }
    for shape in options.beside:
        bench = cuda_bench(count, page, False, together)
        told[shape] = beside_copies(shape, options.rows, bench, count, page, options.in_flight)
    print(json.dumps(told))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the device arena is")
    parser.add_argument("--page-bytes", default="320KiB", help="bytes of one slot (default 320KiB, as of the shape M)")
    parser.add_argument("--bytes", default="256MiB", help="bytes copied in each round (default 256MiB)")
    parser.add_argument("--many", type=int, default=16, help="slots in a move of many (default 16: 256 tokens of KV)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case; medians are reported (default 5)")
    parser.add_argument("--beside", nargs="*", default=[], help="shapes whose decode steps run beside copies, on CUDA")
    parser.add_argument("--rows", type=int, default=8, help="sequences of those steps (default 8)")
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help="calls in flight at once, on CUDA")
    parser.add_argument("--together", default=f"{TOGETHER >> 20}MiB", help="bytes of a call, on CUDA")
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


def cuda_bench(count: int, page: int, verify: bool, together: int) -> Bench:
    """A device arena and a pinned host arena, with copies of up to `together` bytes a call."""
    import torch

    from stepwell.store.streams import StreamCopier, cuda_lanes

    host = HostArena(count, page, allocate=pinned, verify=verify)
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

    up, down = cuda_lanes(pages.device)
    return Bench(
        StreamCopier(pages, host, up=up, down=down, together=together),
        {"save": plain(other, pages), "load": plain(other_pages, other)},
    )


def beside_copies(shape: str, rows: int, bench: Bench, count: int, page: int, in_flight: int) -> dict[str, float]:
    """Decode steps of `rows` sequences at 4k tokens, alone and beside saves and loads that never pause; the better of two each."""
    sys.path.insert(0, str(Path(__file__).parent))
    from gpu_backend import CONTEXT, SHAPES, Rig

    from stepwell.model.backends import backend_for

    steps = 100
    rig = Rig(SHAPES[shape], rows, CONTEXT + 4 * steps, backend_for, (rows,))
    tokens = np.random.default_rng(2).integers(0, 248_320, CONTEXT + rows).astype(np.int32)
    for row in range(rows):
        rig.prefill(row, tokens[row : row + CONTEXT])
    alone: list[float] = []
    beside: dict[str, list[float]] = {way: [] for way in WAYS}
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in (way for _ in range(2) for way in WAYS):
        alone.append(rig.decode(rows, CONTEXT, steps))
        with CopyMover(bench.copier, in_flight=in_flight) as mover, copying(mover, Case(way, 64, False), count) as done:
            before, began = done.slots, time.perf_counter()
            beside[way].append(rig.decode(rows, CONTEXT, steps))
            speeds[way].append((done.slots - before) * page / (time.perf_counter() - began) / 2**30)
    slowed = {way: round(min(found) / min(alone) - 1, 4) for way, found in beside.items()}
    return {
        "decode_ms": round(min(alone), 3),
        "decode_slowed_by": slowed["save"],
        "saves_gib_s": round(min(speeds["save"]), 1),
        "decode_slowed_by_loads": slowed["load"],
        "loads_gib_s": round(min(speeds["load"]), 1),
    }


@dataclass(slots=True)
class Copied:
    slots: int = 0


@contextmanager
def copying(mover: CopyMover, case: Case, count: int) -> Iterator[Copied]:
    """A thread that has a round of all slots queued behind another for as long as the block runs, which begins with copies under way."""
    done, stop, under_way = Copied(), threading.Event(), threading.Event()

    def work() -> None:
        tickets, queued = itertools.count(), dict[int, int]()
        while queued or not stop.is_set():
            while sum(queued.values()) < 2 * count and not stop.is_set():
                moves = [replace(move, ticket=next(tickets)) for move in cut(case, count, len(queued))]
                mover.start(moves)
                queued |= {move.ticket: len(move.source.slots) for move in moves}
            mover.wait(0.05)
            for report in mover.poll():
                assert report.ok, report.error
                done.slots += queued.pop(report.ticket)
            under_way.set()

    thread = threading.Thread(target=work)
    thread.start()
    under_way.wait()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


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
