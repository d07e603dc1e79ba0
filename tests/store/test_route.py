"""One mover out of two: each task goes where it belongs, and all reports come back together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, Forget, LiveState, Move, Report, Tier
from stepwell.store.copier import HostCopier
from stepwell.store.disk.mover import DiskMover
from stepwell.store.host import HostArena
from stepwell.store.mover import CopyMover
from stepwell.store.route import RoutingMover, touches_disk
from tests.store.disk.rig import Chat, Rig, ints


def extent(tier: Tier) -> Extent:
    return Extent(tier, ints(0))


@pytest.mark.parametrize(
    ("source", "target", "disk"),
    [
        (Tier.DEVICE, extent(Tier.HOST), False),
        (Tier.HOST, extent(Tier.DEVICE), False),
        (Tier.HOST, LiveState(0), False),
        (Tier.DEVICE, extent(Tier.DISK), True),
        (Tier.HOST, extent(Tier.DISK), True),
        (Tier.DISK, extent(Tier.DEVICE), True),
        (Tier.DISK, LiveState(0), True),
    ],
)
def test_what_touches_the_disk(source: Tier, target: Extent | LiveState, disk: bool) -> None:
    assert touches_disk(Move(1, "image", extent(source), target, 0)) == disk


class Both:
    """A device, a host and a disk tier under one mover."""

    def __init__(self, path: Path) -> None:
        self.rig = Rig(path)
        self.device = HostArena(64, 64)
        arenas = {Tier.DEVICE: self.device, Tier.HOST: self.rig.host}
        self.copies = CopyMover(HostCopier(arenas, self.rig.live))
        self.disk = DiskMover(self.rig.store, self.rig.gate)
        self.mover = RoutingMover(self.copies, self.disk)


def finish(mover: RoutingMover) -> list[Report]:
    assert mover.drain(30)
    return mover.poll()


def test_bytes_go_round_through_all_tiers(tmp_path: Path) -> None:
    both = Both(tmp_path / "c")
    rig, chat, slots = both.rig, Chat(1), ints(3, 4, 5, 6)
    save = rig.saving(chat, 0, 16, slots)
    target = ints(10, 11, 12, 13)
    with both.mover as mover:
        mover.start([save])
        assert finish(mover) == [Report(save.ticket, True)]
        mover.start(
            [
                Move(50, "kv", Extent(Tier.DISK, slots), Extent(Tier.HOST, target), 16),
                Move(51, "kv", save.source, Extent(Tier.DEVICE, ints(1, 2, 3, 4)), 16),
                Forget(ints(40)),
            ]
        )
        assert sorted(r.ticket for r in finish(mover) if r.ok) == [50, 51]
        assert (rig.host.read(target) == chat.kv(0, 16, 64)).all()
        assert (both.device.read(ints(1, 2, 3, 4)) == chat.kv(0, 16, 64)).all()
        assert set(mover.totals()) == {(Tier.HOST, Tier.DISK), (Tier.DISK, Tier.HOST), (Tier.HOST, Tier.DEVICE)}


def test_waiting_ends_with_the_first_report_of_either(tmp_path: Path) -> None:
    both = Both(tmp_path / "c")
    rig = both.rig
    rig.host.write(ints(0), np.ones((1, 64), np.uint8))
    with both.mover as mover:
        mover.wait(0)
        assert mover.poll() == []
        for ticket in range(100, 110):
            mover.start([Move(ticket, "kv", Extent(Tier.HOST, ints(0)), Extent(Tier.DEVICE, ints(0)), 4)])
            heard: list[Report] = []
            while not heard:
                mover.wait(30)
                heard = mover.poll()
            assert heard == [Report(ticket, True)]
            save = rig.saving(Chat(ticket), 0, 16, rig.take(4))
            mover.start([save])
            heard = []
            while not heard:
                mover.wait(30)
                heard = mover.poll()
            assert heard == [Report(save.ticket, True)]


def test_a_report_found_while_waiting_is_not_lost(tmp_path: Path) -> None:
    both = Both(tmp_path / "c")
    with both.mover as mover:
        save = both.rig.saving(Chat(1), 0, 16, both.rig.take(4))
        mover.start([save])
        assert mover.drain(30)
        mover.wait(30)
        mover.wait(30)
        assert mover.poll() == [Report(save.ticket, True)]


def test_closed_is_closed(tmp_path: Path) -> None:
    both = Both(tmp_path / "c")
    both.mover.close()
    both.mover.close()
    with pytest.raises(StoreError):
        both.mover.start([Forget(ints(0))])
