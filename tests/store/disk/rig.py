"""A store without threads, a directory's worth of slots, and conversations whose pages can be told apart."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_128_digest

from stepwell.base.clock import VirtualClock
from stepwell.base.geometry import Ints
from stepwell.cache.disk.archive import Dormant
from stepwell.cache.disk.names import Names, Trail
from stepwell.cache.moves import Extent, Forget, LiveState, Move, Report, Task, Tier
from stepwell.store.arena import Rows
from stepwell.store.disk.gate import MemoryGate
from stepwell.store.disk.record import Layout
from stepwell.store.disk.store import DiskStore, Options
from stepwell.store.host import HostArena
from stepwell.testing.disk import FaultyFiles

BLOCK, IMAGE_PAGES, CHUNK = 4, 3, 16
BUDGET = 1 << 20


def ints(*slots: int) -> Ints:
    return np.array(slots, np.int32)


def layout(page_bytes: int = 64, fingerprint: bytes = b"f" * 32, chunk: int = CHUNK) -> Layout:
    return Layout(page_bytes, BLOCK, IMAGE_PAGES, chunk, fingerprint)


class Chat:
    """Tokens under a salt, and the bytes that a model would have made of them: every page depends on all before it."""

    def __init__(self, seed: int, length: int = 64, salt: str = "salt") -> None:
        self.salt = salt
        self.tokens: Ints = np.random.default_rng(seed).integers(0, 50_000, length, dtype=np.int32)

    def fork(self, at: int, seed: int) -> Chat:
        """The same up to token `at`."""
        other = Chat(seed, len(self.tokens), self.salt)
        other.tokens[:at] = self.tokens[:at]
        return other

    def kv(self, start: int, end: int, page_bytes: int) -> Rows:
        ends = range(start + BLOCK, end + 1, BLOCK)
        return np.stack([_noise(self.salt, self.tokens[:stop], 0, page_bytes) for stop in ends])

    def image(self, at: int, page_bytes: int) -> Rows:
        return np.stack([_noise(self.salt, self.tokens[:at], 1 + i, page_bytes) for i in range(IMAGE_PAGES)])


def _noise(salt: str, tokens: Ints, part: int, size: int) -> Any:
    seed = xxh3_128_digest(salt.encode() + tokens.tobytes() + bytes([part]))
    return np.frombuffer(random.Random(seed).randbytes(size), np.uint8)


class Live:
    """Live states that keep what they were given."""

    def __init__(self) -> None:
        self.loaded: dict[int, bytes] = {}

    def load_image(self, slot: int, image: Rows) -> None:
        self.loaded[slot] = image.tobytes()


class Rig:
    """One engine's life on a folder; `again` is the next one's."""

    def __init__(
        self,
        path: Path,
        *,
        shape: Layout | None = None,
        budget: int = BUDGET,
        files: FaultyFiles | None = None,
        **options: Any,
    ) -> None:
        self.path, self.shape, self.budget = path, shape or layout(), budget
        self.files = files or FaultyFiles()
        self.clock = VirtualClock()
        self.time = 1_000_000.0
        options = {"clock": self.clock, "wall": self.wall, "files": self.files} | options
        self.store = DiskStore.open(path, budget, self.shape, Options(**options))
        self.host = HostArena(64, self.shape.page_bytes)
        self.live = Live()
        self.gate = MemoryGate({Tier.HOST: self.host}, self.live)
        self.memory = self.gate.memory(16)
        self.tickets = itertools.count(1)
        self.free = list(range(self.store.slots - 1, -1, -1))

    def wall(self) -> float:
        self.time += 1
        return self.time

    def again(self, **options: Any) -> Rig:
        self.store.close()
        return Rig(self.path, shape=self.shape, budget=self.budget, **options)

    # ---- the directory's part -----------------------------------------------------------------------------

    def take(self, count: int) -> Ints:
        return ints(*(self.free.pop() for _ in range(count)))

    def trail(self, chat: Chat) -> Trail:
        return Names(self.store.names_key, self.shape.chunk).trail(chat.salt, chat.tokens)

    def saving(self, chat: Chat, start: int, end: int, slots: Ints) -> Move:
        """A move of KV [start, end) to these slots, its bytes ready in the host arena."""
        rows = chat.kv(start, end, self.shape.page_bytes)
        source = np.arange(len(rows), dtype=np.int32)
        self.host.write(source, rows)
        names = tuple(self.trail(chat).records(start, end))
        return Move(next(self.tickets), "kv", Extent(Tier.HOST, source), Extent(Tier.DISK, slots), end, names)

    def saving_image(self, chat: Chat, at: int, slots: Ints) -> Move:
        source = np.arange(60, 60 + IMAGE_PAGES, dtype=np.int32)
        self.host.write(source, chat.image(at, self.shape.page_bytes))
        names = (self.trail(chat).image(at),)
        return Move(next(self.tickets), "image", Extent(Tier.HOST, source), Extent(Tier.DISK, slots), at, names)

    def save(self, chat: Chat, start: int, end: int) -> Ints:
        """Slots that hold KV [start, end) now."""
        slots = self.take((end - start) // BLOCK)
        [report] = self.run([self.saving(chat, start, end, slots)])
        assert report.ok, report.error
        return slots

    def save_image(self, chat: Chat, at: int) -> Ints:
        slots = self.take(IMAGE_PAGES)
        [report] = self.run([self.saving_image(chat, at, slots)])
        assert report.ok, report.error
        return slots

    def run(self, tasks: Sequence[Task]) -> list[Report]:
        """Hand these over and have everything in the inbox carried out."""
        inbox, store = self.store.inbox, self.store
        refused = inbox.submit(tasks, self.gate.fence)
        gone = (int(slot) for task in tasks if isinstance(task, Forget) for slot in task.slots)
        self.free += [slot for slot in gone if 0 <= slot < store.slots]
        reports = [Report(move.ticket, False, "queue full") for move in refused]
        while jobs := inbox.take(store.batch_bytes, self.shape.page_bytes):
            reports += store.write(jobs, self.gate)
        return reports

    def read(self, slots: Ints, end: int, what: Any = "kv") -> Rows:
        """Bytes of these slots, said to end at token `end`."""
        got: list[Rows] = []
        move = Move(next(self.tickets), what, Extent(Tier.DISK, slots), LiveState(0), end)
        self.store.read(move, self.memory, lambda part, rows: got.append(rows.copy()))
        return np.concatenate(got) if got else np.empty((0, self.shape.page_bytes), np.uint8)

    def holds(self, chat: Chat, start: int, end: int, slots: Ints) -> bool:
        return bool((self.read(slots, end) == chat.kv(start, end, self.shape.page_bytes)).all())

    def holds_image(self, chat: Chat, at: int, slots: Ints) -> bool:
        return bool((self.read(slots, at, "image") == chat.image(at, self.shape.page_bytes)).all())

    def adopt(self, dormant: Dormant) -> Ints:
        slots = self.take(dormant.pages)
        self.store.catalogue.adopt(dormant, slots)
        return slots

    def under(self, parent: bytes) -> Sequence[Dormant]:
        """All dormant records of this parent, whatever they go on with."""
        place = self.path / self.shape.fingerprint.hex()[:16] / "manifest.sqlite"
        try:
            with closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as index:
                digests = [
                    digest for (digest,) in index.execute("SELECT digest FROM record WHERE parent = ?", (parent,))
                ]
        except sqlite3.Error:
            digests = [parent]  # the catalogue is asked all the same
        return self.store.catalogue.under(parent, digests)

    def recall(self, chat: Chat) -> tuple[int, int]:
        """Adopt every record of `chat` that can be found and read it back: how far the KV reaches, and how many images there are.

        A record that cannot be read is forgotten, as the directory would. What is read is what was saved, or the test fails.
        """
        trail, reach, images = self.trail(chat), 0, 0
        while True:
            found = self.under(trail.at(reach))
            images += sum(self._recall_image(chat, one) for one in found if one.what == "image")
            fitting = [
                d
                for d in found
                if d.what == "kv" and d.name.end <= len(trail) and d.name.digest == trail.at(d.name.end)
            ]
            if not fitting:
                return reach, images
            assert all(one.name.start == reach for one in fitting)
            ends = [one.name.end for one in fitting if self._recall_kv(chat, one)]
            if not ends:
                return reach, images
            reach = max(ends)

    def _recall_kv(self, chat: Chat, found: Dormant) -> bool:
        slots = self.adopt(found)
        try:
            rows = self.read(slots, found.name.end)
        except Exception:
            self.run([Forget(slots)])
            return False
        assert (rows == chat.kv(found.name.start, found.name.end, self.shape.page_bytes)).all(), "a wrong byte"
        return True

    def _recall_image(self, chat: Chat, found: Dormant) -> bool:
        slots = self.adopt(found)
        try:
            rows = self.read(slots, found.name.end, "image")
        except Exception:
            self.run([Forget(slots)])
            return False
        assert (rows == chat.image(found.name.end, self.shape.page_bytes)).all(), "a wrong byte"
        return True


def segments_in(path: Path) -> list[Path]:
    return sorted(path.glob("*/segments/*.seg"))


def manifest_in(path: Path) -> Path:
    [found] = path.glob("*/manifest.sqlite")
    return found


def bytes_in(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
