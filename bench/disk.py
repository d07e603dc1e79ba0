"""How fast the disk tier writes and reads, against the file system's own limit in the same run, and how soon it can be used.

    python bench/disk.py                       records of 256 tokens in pages of 384 KiB, in the current folder's file system
    python bench/disk.py --folder /mnt/nvme --bytes 16GiB

demote    moves to disk through `DiskMover`, verified and synced, over plain writes of the same bytes synced as often
restore   moves from disk into memory, over plain reads of the same sizes by as many threads; caches are dropped before each
cold      from a closed store with an index of many chunks to a prompt of 100,000 tokens found in it

Prints a table, then one line of JSON. Works in a folder of its own, which it removes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepwell.base.geometry import Geometry, Ints
from stepwell.base.units import format_size, parse_size
from stepwell.cache.config import CacheConfig
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import Archive
from stepwell.cache.disk.learn import learn_from_disk
from stepwell.cache.disk.names import DIGEST, Names
from stepwell.cache.moves import Extent, Move, Name, Tier
from stepwell.store.arena import PlainArena, Rows
from stepwell.store.disk.gate import MemoryGate
from stepwell.store.disk.manifest import Manifest, Row, SegmentRow
from stepwell.store.disk.mover import DiskMover
from stepwell.store.disk.record import Kind, Layout
from stepwell.store.disk.store import BATCH_BYTES, LARGEST_SEGMENT, DiskStore

BLOCK, CHUNK, IMAGE_PAGES = 16, 256, 100
PAGES = CHUNK // BLOCK
READERS = 4
PROMPT = 100_000


@dataclass(frozen=True, slots=True)
class Bench:
    """records of PAGES pages, `per_move` of them in a move; `source` has the pages of `held` records, used again and again."""

    folder: Path
    layout: Layout
    records: int
    per_move: int
    source: Rows

    @property
    def bytes(self) -> int:
        return self.records * PAGES * self.layout.page_bytes

    @property
    def record_bytes(self) -> int:
        return self.layout.record_bytes(Kind.KV, PAGES)

    @property
    def held(self) -> int:
        return len(self.source) // PAGES

    def pages_of(self, record: int) -> Ints:
        """Where the pages of a record are in memory."""
        first = record % self.held * PAGES
        return np.arange(first, first + PAGES, dtype=np.int32)


def main() -> None:
    options = parse_arguments()
    page = parse_size(options.page_bytes)
    per_move = 4096 // CHUNK
    records = max(1, parse_size(options.bytes) // (page * PAGES * per_move)) * per_move
    layout = Layout(page, BLOCK, IMAGE_PAGES, CHUNK, bytes(32))
    source = np.random.default_rng(0).integers(0, 256, (2 * per_move * PAGES, page), dtype=np.uint8)
    pairs: dict[str, list[tuple[float, float]]] = {"demote": [], "restore": []}
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-", dir=options.folder) as folder:
        bench = Bench(Path(folder), layout, records, per_move, source)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("writing and reading", total=options.rounds)
            for number in range(options.rounds):
                for way, pair in measure(bench, number).items():
                    pairs[way].append(pair)
                bar.advance(task)
        seconds, found = cold_start(Path(folder), layout, options.chunks)
    ratios = {way: round(statistics.median(plain / moved for moved, plain in of), 3) for way, of in pairs.items()}
    Console().print(table(bench, pairs, ratios, seconds, found, options.chunks))
    print(
        json.dumps(
            {
                "demote_over_limit": ratios["demote"],
                "restore_over_limit": ratios["restore"],
                "cold_start_s": round(seconds, 3),
                "chunks": options.chunks,
            }
        )
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", help="a folder in the file system to measure (default: here)")
    parser.add_argument("--page-bytes", default="393216", help="bytes of one page (default 393216)")
    parser.add_argument("--bytes", default="2GiB", help="bytes written and read in each round (default 2GiB)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are reported (default 3)")
    parser.add_argument(
        "--chunks", type=int, default=1_000_000, help="chunks in the index of the cold start (default 10^6)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.bytes, options.rounds, options.chunks, options.page_bytes = "64MiB", 1, 10_000, "65536"
    return options


# ---- throughput -----------------------------------------------------------------------------------------------


def measure(bench: Bench, number: int) -> dict[str, tuple[float, float]]:
    """Seconds of the mover and of plain calls, by way. Which of the two writes first changes from round to round."""
    cache, plain = bench.folder / f"cache-{number}", bench.folder / f"plain-{number}"
    budget = int(bench.bytes * 1.5) + (1 << 30)
    with DiskStore.open(cache, budget, bench.layout) as store:
        slots = np.arange(bench.records * PAGES, dtype=np.int32)
        target = np.empty_like(bench.source)
        arenas = {Tier.DEVICE: PlainArena(bench.source), Tier.HOST: PlainArena(target)}
        with DiskMover(store, MemoryGate(arenas), readers=READERS) as mover:
            demote = [lambda: carry_out(mover, saves(bench, store, slots)), lambda: plain_writes(bench, plain)]
            restore = [lambda: carry_out(mover, loads(bench, slots)), lambda: plain_reads(bench, plain)]
            times = {}
            for way, pair in (("demote", demote), ("restore", restore)):
                order = [0, 1] if number % 2 else [1, 0]
                took = {side: timed(pair[side], bench.folder) for side in order}
                times[way] = (took[0], took[1])
        assert (target == bench.source).all()
    for path in (*cache.glob("*/segments/*"), *plain.iterdir()):
        path.unlink()
    return times


def timed(work: Callable[[], None], folder: Path) -> float:
    """Seconds of `work`, no file of the folder being in the page cache."""
    drop_caches(folder)
    with stopwatch() as seconds:
        work()
    return seconds[0]


def carry_out(mover: DiskMover, moves: list[Move]) -> None:
    mover.start(moves)
    mover.drain()
    bad = [report.error for report in mover.poll() if not report.ok]
    if bad:
        raise SystemExit(f"{len(bad)} of {len(moves)} copies failed: {bad[0]}")


def saves(bench: Bench, store: DiskStore, slots: Ints) -> list[Move]:
    """Moves to disk of a sequence as long as all records together."""
    tokens = np.random.default_rng(1).integers(0, 1 << 17, bench.records * CHUNK, dtype=np.int32)
    names = list(Names(store.names_key, CHUNK).trail("", tokens).records(0, len(tokens)))
    moves = []
    for ticket, first in enumerate(range(0, bench.records, bench.per_move)):
        last = first + bench.per_move
        memory = np.concatenate([bench.pages_of(record) for record in range(first, last)])
        place = Extent(Tier.DISK, slots[first * PAGES : last * PAGES])
        moves.append(Move(ticket, "kv", Extent(Tier.DEVICE, memory), place, last * CHUNK, tuple(names[first:last])))
    return moves


def loads(bench: Bench, slots: Ints) -> list[Move]:
    """Moves of the same records back into memory."""
    moves = []
    for number, first in enumerate(range(0, bench.records, bench.per_move)):
        last = first + bench.per_move
        memory = np.concatenate([bench.pages_of(record) for record in range(first, last)])
        place = Extent(Tier.DISK, slots[first * PAGES : last * PAGES])
        ticket = bench.records + number
        moves.append(Move(ticket, "kv", place, Extent(Tier.HOST, memory), last * CHUNK))
    return moves


def plain_writes(bench: Bench, folder: Path) -> None:
    """The same bytes in files of the same size, a header and the pages a call, synced once a batch as the store does."""
    folder.mkdir()
    header = memoryview(bytes(bench.layout.header_bytes(Kind.KV)))
    fd, at, unsynced = -1, 0, 0
    for record in range(bench.records):
        if fd < 0 or at + bench.record_bytes > LARGEST_SEGMENT:
            if fd >= 0:
                os.fdatasync(fd)
                os.close(fd)
            fd, at = os.open(folder / f"{record}", os.O_CREAT | os.O_WRONLY, 0o600), 0
        rows = bench.source[bench.pages_of(record)[0] :][:PAGES]
        at += write_all(fd, [header, rows.data], at)
        unsynced += bench.record_bytes
        if unsynced >= BATCH_BYTES:
            os.fdatasync(fd)
            unsynced = 0
    os.fdatasync(fd)
    os.close(fd)


def write_all(fd: int, buffers: list[memoryview], offset: int) -> int:
    size = sum(buffer.nbytes for buffer in buffers)
    assert os.pwritev(fd, buffers, offset) == size, "a short write: give a folder with more room"
    return size


def plain_reads(bench: Bench, folder: Path) -> None:
    """The same bytes, a record a call, by as many threads."""
    places = [(path, at) for path in folder.iterdir() for at in range(0, path.stat().st_size, bench.record_bytes)]

    def read(some: list[tuple[Path, int]]) -> None:
        memory = memoryview(bytearray(bench.record_bytes))
        for path, at in some:
            fd = os.open(path, os.O_RDONLY)
            assert os.preadv(fd, [memory], at) == bench.record_bytes
            os.close(fd)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, [places[i::READERS] for i in range(READERS)]))


def drop_caches(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


# ---- cold start -----------------------------------------------------------------------------------------------


def cold_start(folder: Path, layout: Layout, chunks: int) -> tuple[float, int]:
    """Seconds from opening a store of so many chunks to having found a prompt, and how many tokens of it were found."""
    path = folder / "cold"
    tokens = np.random.default_rng(2).integers(0, 1 << 17, PROMPT, dtype=np.int32)
    budget = int(1.3 * chunks * layout.record_bytes(Kind.KV, PAGES)) + (1 << 30)
    with DiskStore.open(path, budget, layout) as store:
        key = store.names_key
    (index,) = path.glob("*/manifest.sqlite")
    fill(index, layout, key, tokens, chunks)
    drop_caches(path)
    geometry = Geometry(BLOCK, 64, layout.page_bytes, IMAGE_PAGES * layout.page_bytes)
    with stopwatch() as seconds:
        store = DiskStore.open(path, budget, layout)
        archive = Archive(Names(store.names_key, CHUNK), store.catalogue)
        directory = Directory(CacheConfig(geometry, 1024, 1024, store.slots), archive)
        learn_from_disk(directory, "", tokens, 0.0)
    found = max(node.end for node in directory.tree.nodes())
    store.close()
    assert found >= min(PROMPT, chunks * CHUNK) // CHUNK * CHUNK, f"only {found} tokens were found"
    return seconds[0], found


def fill(index: Path, layout: Layout, key: bytes, tokens: Ints, chunks: int) -> None:
    """Rows of one conversation and of many others, in sparse files: an index as it would be, over bytes that nobody reads."""
    per_file, size = 1000, layout.record_bytes(Kind.KV, PAGES)
    manifest = Manifest(index)
    names = all_names(key, tokens, chunks)
    batch: dict[int, Row | None] = {}
    for number in range(chunks):
        segment, place = number // per_file + 1, number % per_file
        row = Row(number + 1, Kind.KV, next(names), segment, place * size, 0, PAGES, number, float(number))
        batch[row.id] = row
        if place == per_file - 1 or number == chunks - 1:
            with (index.parent / "segments" / f"{segment:08d}.seg").open("wb") as file:
                file.truncate((place + 1) * size)
            manifest.commit(batch, [SegmentRow(segment, (place + 1) * size, len(batch) * PAGES, len(batch))])
            batch = {}
    manifest.checkpoint()
    manifest.close()


def all_names(key: bytes, tokens: Ints, chunks: int) -> Iterator[Name]:
    """The names of a conversation's whole chunks, then those of others as long, in random digests."""
    trail = Names(key, CHUNK).trail("", tokens)
    whole = len(tokens) // CHUNK * CHUNK
    yield from trail.records(0, whole)
    root = trail.root
    while True:
        above = root
        for start in range(0, whole, CHUNK):
            digest = os.urandom(DIGEST)
            yield Name(root, above, digest, start, start + CHUNK)
            above = digest


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    seconds: list[float] = []
    begun = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - begun)


def table(
    bench: Bench,
    pairs: dict[str, list[tuple[float, float]]],
    ratios: dict[str, float],
    seconds: float,
    found: int,
    chunks: int,
) -> Table:
    result = Table(title=f"{format_size(bench.bytes)} a round in records of {format_size(bench.record_bytes)}")
    for name in ("way", "mover", "plain calls", "ratio"):
        result.add_column(name, justify="left" if name == "way" else "right")
    for way, of in pairs.items():
        speeds = [f"{bench.bytes / statistics.median(p[side] for p in of) / 2**20:,.0f} MiB/s" for side in (0, 1)]
        result.add_row(way, *speeds, f"{ratios[way]:.2f}")
    result.add_row("cold start", f"{seconds:.2f} s", f"{chunks:,} chunks", f"{found:,} tokens")
    return result


if __name__ == "__main__":
    main()
