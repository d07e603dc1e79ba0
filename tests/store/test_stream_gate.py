"""The disk's gate on CUDA: right bytes, ordered after the steps that were queued before. Skipped without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.cache.moves import Divide, Extent, LiveState, Move, Tier
from stepwell.store.disk.mover import DiskMover
from stepwell.store.host import HostArena, pinned
from tests.store.disk.rig import Chat, Rig, ints

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Images:
    def __init__(self) -> None:
        self.loaded: dict[int, Any] = {}

    def unpack(self, rows: Any, slot: int) -> None:
        self.loaded[slot] = rows.clone()


def test_device_pages_go_to_disk_and_come_back(tmp_path: Path) -> None:
    from stepwell.store.stream_gate import StreamGate

    rig, chat, live = Rig(tmp_path / "c"), Chat(1), Images()
    pages = torch.zeros((64, 64), dtype=torch.uint8, device="cuda")
    host = HostArena(16, 64, allocate=pinned)
    source, slots, image = ints(9, 3, 4, 5), rig.take(4), rig.take(3)
    with DiskMover(rig.store, StreamGate(pages, host, live)) as mover:
        torch.cuda._sleep(50_000_000)  # a step that still computes when the move is asked for
        pages[torch.from_numpy(source.astype(np.int64)).cuda()] = torch.from_numpy(chat.kv(0, 16, 64).copy()).cuda()
        pages[20:23] = torch.from_numpy(chat.image(16, 64).copy()).cuda()
        names, trail = tuple(rig.trail(chat).records(0, 16)), rig.trail(chat)
        mover.start(
            [
                Move(1, "kv", Extent(Tier.DEVICE, source), Extent(Tier.DISK, slots), 16, names),
                Move(
                    2, "image", Extent(Tier.DEVICE, ints(20, 21, 22)), Extent(Tier.DISK, image), 16, (trail.image(16),)
                ),
                Divide(int(slots[0]), int(slots[1]), 4, trail.at(4)),
            ]
        )
        assert mover.drain(30)
        assert [r.ok for r in mover.poll()] == [True, True]
        mover.start(
            [
                Move(3, "kv", Extent(Tier.DISK, slots), Extent(Tier.DEVICE, ints(40, 50, 41, 42)), 16),
                Move(4, "kv", Extent(Tier.DISK, slots), Extent(Tier.HOST, ints(1, 2, 3, 4)), 16),
                Move(5, "image", Extent(Tier.DISK, image), LiveState(2), 16),
            ]
        )
        assert mover.drain(30)
        assert all(r.ok for r in mover.poll())
    assert (pages[[40, 50, 41, 42]].cpu().numpy() == chat.kv(0, 16, 64)).all()
    assert (host.read(ints(1, 2, 3, 4)) == chat.kv(0, 16, 64)).all()
    assert (live.loaded[2].cpu().numpy() == chat.image(16, 64)).all()
