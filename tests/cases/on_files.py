"""An engine on the tell-tale whose disk tier is the real one, on real files, with its real threads.

    with OnFiles(path) as engine:
        outcome = engine.ask(prompt)          its answer has been compared with the cold one

As a program it serves conversations for ever, to be killed:  python -m tests.cases.on_files PATH SEED
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from stepwell.base.clock import WallClock
from stepwell.base.geometry import Ints
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
from stepwell.store.disk.store import DiskStore
from stepwell.store.mover import CopyMover
from stepwell.store.route import RoutingMover
from stepwell.testing import telltale
from tests.cache.builders import join, numbers
from tests.cases.serving import DEAR, VOCAB, rules

BUDGET = 4 << 20
PATIENCE = 30.0
"""Seconds after which an engine that is not done is taken for stuck; nothing here takes one."""


class Images:
    """The live states of a memory, as the target of state legs."""

    def __init__(self, memory: telltale.Memory) -> None:
        self._memory = memory

    def load_image(self, slot: int, image: Rows) -> None:
        rows = np.ascontiguousarray(image).view(np.uint64).reshape(-1, self._memory.words)
        self._memory.live[slot] = self._memory.unpack(rows)


class OnFiles:
    """`pages` and `host` as in `rules`; `fingerprint` tells models apart."""

    def __init__(self, path: Path, pages: int = 64, host: int = 96, fingerprint: bytes = bytes(32)) -> None:
        small = rules(pages, host)
        sizes = small.geometry
        layout = Layout(sizes.page_bytes, sizes.block, sizes.image_pages, small.chunk, fingerprint)
        self._closing = ExitStack()
        self.store = self._closing.enter_context(DiskStore.open(path, BUDGET, layout))
        memory = telltale.Memory(sizes, pages, host, 4)
        rows = {tier: _bytes(memory.arenas[tier]) for tier in (Tier.DEVICE, Tier.HOST)}
        arenas = {tier: PlainArena(rows[tier]) for tier in rows}
        copies = CopyMover(HostCopier(arenas, Images(memory)))
        self._disk = DiskMover(self.store, MemoryGate(arenas, Images(memory)))
        self._mover = self._closing.enter_context(RoutingMover(copies, self._disk))
        self.loop = EngineLoop(
            rules(pages, host, disk=self.store.slots),
            SchedConfig(4, 64, 1 << 20, 8, vocab=VOCAB),
            telltale.TellTaleRunner(memory, sizes, VOCAB),
            self._mover,
            WallClock(),
            DEAR,
            Archive(Names(self.store.names_key, small.chunk), self.store.catalogue),
        )

    def __enter__(self) -> OnFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def ask(self, prompt: Ints, max_tokens: int = 2, salt: str = "") -> AdmissionOutcome:
        """Serve one prompt, and wait until what it left has been written."""
        said, outcome = self.say(prompt, max_tokens, salt)
        assert said == telltale.answer(prompt, max_tokens, VOCAB, salt), f"{outcome.in_one_line()}: not the cold answer"
        return outcome

    def say(self, prompt: Ints, max_tokens: int = 2, salt: str = "") -> tuple[list[int], AdmissionOutcome]:
        self.loop.submit(Request("one", prompt, SamplingParams(max_tokens), salt))
        said: list[int] = []
        admitted: list[AdmissionOutcome] = []
        given_up = time.monotonic() + PATIENCE
        while self.loop.busy:
            assert time.monotonic() < given_up, self.loop.stats()
            for event in self.loop.step():
                if isinstance(event, Tokens):
                    said += event.tokens
                elif isinstance(event, Admitted):
                    admitted.append(event.outcome)
                elif isinstance(event, Finished):
                    assert event.reason == "length", event
        (outcome,) = admitted
        return said, outcome

    def forget_memory(self) -> None:
        """Drop what is on the device and in host."""
        directory = self.loop.directory
        for tier in (Tier.DEVICE, Tier.HOST):
            items = [item for node in directory.tree.nodes() for item in node.items()]
            for item in sorted(items, key=lambda i: (-i.node.end, i.what == "kv")):
                if item.at[tier] is not None:
                    directory.drop(item, tier)

    def settle(self) -> None:
        """Wait until the store has carried out all that it was told."""
        while self.loop.busy:
            self.loop.step()
        assert self._mover.drain(PATIENCE)


def _bytes(arena: telltale.Words) -> Rows:
    return arena.view(np.uint8).reshape(len(arena), -1)


def stems(seed: int = 0) -> list[Ints]:
    return [numbers(48, 10 * seed + number) for number in range(4)]


def main(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with OnFiles(path) as engine:
        print("serving", flush=True)
        while True:
            stem = stems()[int(rng.integers(4))]
            engine.ask(join(stem[: 16 * int(rng.integers(1, 4))], numbers(9, int(rng.integers(1 << 30)))), 4)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
