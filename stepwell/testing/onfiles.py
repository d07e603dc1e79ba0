"""An engine on the tell-tale whose disk tier is the real one: real files, real threads, a real index.

with OnFiles(path) as engine:
    engine.ask(prompt)          raises AssertionError if the answer is not the cold one
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from stepwell.base.clock import WallClock
from stepwell.base.geometry import Geometry, Ints
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.disk.archive import Archive
from stepwell.cache.disk.names import Names
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Admitted, Finished, Request, SamplingParams, Tokens
from stepwell.store.arena import PlainArena, Rows
from stepwell.store.copier import HostCopier
from stepwell.store.disk.gate import MemoryGate
from stepwell.store.disk.mover import DiskMover
from stepwell.store.disk.record import Layout
from stepwell.store.disk.store import DiskStore, Options
from stepwell.store.mover import CopyMover
from stepwell.store.route import RoutingMover
from stepwell.testing.telltale import Memory, TellTaleRunner, geometry

SIZES = geometry(block=16, rung_grid=32, image_pages=64)
"""Pages of 256 bytes and images of 16 KiB: a few dozen prompts fill the smallest disk there can be."""
CHUNK = 64
BUDGET = 1 << 20
VOCAB = 1000
_DEAR = Costs(prefill_tokens_per_s=100.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=1e-6)
_LIVE = 4


def layout(fingerprint: bytes = bytes(32), sizes: Geometry = SIZES) -> Layout:
    return Layout(sizes.page_bytes, sizes.block, sizes.image_pages, CHUNK, fingerprint)


class _Images:
    """The live states of a memory, as the target of state legs."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def load_image(self, slot: int, image: Rows) -> None:
        rows = np.ascontiguousarray(image).view(np.uint64).reshape(-1, self._memory.words)
        self._memory.live[slot] = self._memory.unpack(rows)


class OnFiles:
    """One engine's life on a folder."""

    def __init__(self, path: Path, options: Options | None = None, pages: int = 1024, host: int = 1024) -> None:
        self._closing = ExitStack()
        self.store = self._closing.enter_context(DiskStore.open(path, BUDGET, layout(), options))
        memory = Memory(SIZES, pages, host, _LIVE)
        arenas = {tier: PlainArena(_bytes(memory, tier)) for tier in (Tier.DEVICE, Tier.HOST)}
        copies = CopyMover(HostCopier(arenas, _Images(memory)))
        disk = DiskMover(self.store, MemoryGate(arenas, _Images(memory)), readers=2)
        mover = self._closing.enter_context(RoutingMover(copies, disk))
        self.loop = EngineLoop(
            CacheConfig(SIZES, pages, host, self.store.slots, chunk=CHUNK, interval=64),
            SchedConfig(_LIVE, 64, 1 << 20, 16, vocab=VOCAB),
            TellTaleRunner(memory, SIZES, VOCAB),
            mover,
            WallClock(),
            _DEAR,
            Archive(Names(self.store.names_key, CHUNK), self.store.catalogue),
        )
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def say(self, prompt: Ints, count: int) -> tuple[list[int], AdmissionOutcome]:
        """The answer, and how the prompt was resumed. What it left may be on its way to disk still."""
        self._asked += 1
        self.loop.submit(Request(f"r{self._asked}", prompt, SamplingParams(count, ignore_eos=True)))
        said: list[int] = []
        admitted: list[AdmissionOutcome] = []
        while self.loop.serving:
            for event in self.loop.step():
                match event:
                    case Admitted(_, outcome):
                        admitted.append(outcome)
                    case Tokens(_, tokens):
                        said += tokens
                    case Finished(_, reason, message):
                        assert reason == "length", message
        return said, admitted[0]

    def settle(self) -> None:
        """Until everything that is worth it is on disk, and all that was ordered has been done."""
        while self.loop.busy:
            self.loop.step()


def _bytes(memory: Memory, tier: Tier) -> Rows:
    arena = memory.arenas[tier]
    return arena.view(np.uint8).reshape(len(arena), -1)
