"""Copies on a CUDA stream: right bytes, ordered after the steps that were queued before them. Skipped without a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Extent, LiveState, Move, Report, Tier
from stepwell.store.host import HostArena
from stepwell.store.mover import CopyMover

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PAGE, SLOTS = 64 * 1024, 32


class Images:
    def __init__(self) -> None:
        self.loaded: dict[int, Any] = {}

    def unpack(self, rows: Any, slot: int) -> None:
        self.loaded[slot] = rows.clone()


class Pair:
    """Device pages of random bytes, an empty pinned host arena, and a mover between them."""

    def __init__(self) -> None:
        from stepwell.store.streams import StreamCopier

        self.pages = torch.randint(0, 256, (SLOTS, PAGE), dtype=torch.uint8, device="cuda")
        self.host = HostArena(SLOTS, PAGE, pin=True)
        self.images = Images()
        self.mover = CopyMover(StreamCopier(self.pages, self.host, self.images))

    def run(self, move: Move) -> Report:
        self.mover.start([move])
        assert self.mover.drain(60)
        [report] = self.mover.poll()
        return report


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.mover.close()


def ints(*slots: int) -> Ints:
    return np.array(slots, np.int32)


def save(ticket: int, pages: Ints, slots: Ints) -> Move:
    return Move(ticket, "kv", Extent(Tier.DEVICE, pages), Extent(Tier.HOST, slots), 0)


def load(ticket: int, slots: Ints, pages: Ints) -> Move:
    return Move(ticket, "kv", Extent(Tier.HOST, slots), Extent(Tier.DEVICE, pages), 0)


def test_random_moves_there_and_back_again(pair: Pair) -> None:
    rng = random.Random(0)
    original = pair.pages.clone()
    for ticket in range(0, 60, 2):
        count = rng.randint(1, 12)
        pages, slots = (ints(*rng.sample(range(SLOTS), count)) for _ in range(2))
        assert pair.run(save(ticket, pages, slots)) == Report(ticket, True)
        pair.pages[torch.from_numpy(pages.astype(np.int64)).cuda()] = 0xDB
        assert pair.run(load(ticket + 1, slots, pages)) == Report(ticket + 1, True)
        assert torch.equal(pair.pages, original)


def test_consecutive_slots_go_as_one_piece(pair: Pair) -> None:
    assert pair.run(save(1, ints(4, 5, 6), ints(0, 1, 2))).ok
    assert (pair.host.rows[:3] == pair.pages[4:7].cpu().numpy()).all()
    assert pair.run(load(2, ints(0, 1, 2), ints(8, 9, 10))).ok
    assert torch.equal(pair.pages[8:11], pair.pages[4:7])


def test_an_image_reaches_its_live_state_from_either_tier(pair: Pair) -> None:
    assert pair.run(save(1, ints(3, 9), ints(7, 2))).ok
    for ticket, source in ((2, Extent(Tier.HOST, ints(7, 2))), (3, Extent(Tier.DEVICE, ints(3, 9)))):
        assert pair.run(Move(ticket, "image", source, LiveState(ticket), 64)).ok
        torch.cuda.synchronize()
        assert torch.equal(pair.images.loaded[ticket], pair.pages[[3, 9]])


def test_a_save_waits_for_the_writes_queued_before_it(pair: Pair) -> None:
    torch.cuda._sleep(200_000_000)  # cycles: a step still under way when the move is started
    pair.pages[5] = 7
    assert pair.run(save(1, ints(5), ints(0))).ok
    assert (pair.host.rows[0] == 7).all()


def test_a_torn_host_copy_and_bad_slots_are_reports(pair: Pair) -> None:
    assert pair.run(save(1, ints(1, 2), ints(1, 2))).ok
    pair.host.rows[2, 0] ^= 255
    assert "host slot 2 fails its checksum" in pair.run(load(2, ints(1, 2), ints(1, 2))).error
    assert "has 32 slots" in pair.run(save(3, ints(32), ints(0))).error
    assert "has 32 slots" in pair.run(load(4, ints(1), ints(-1))).error
    assert (
        "no copy from host to host"
        in pair.run(Move(5, "kv", Extent(Tier.HOST, ints(1)), Extent(Tier.HOST, ints(0)), 0)).error
    )
