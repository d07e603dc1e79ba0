"""Within the budget, whatever is asked of it: by removing what is empty, what others left, and what is mostly dead."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Divide, Extent, Forget, LiveState, Move, Tier
from stepwell.store.disk.files import POINTS, Buffers
from stepwell.store.disk.record import Layout
from tests.store.disk.rig import Chat, Rig, layout, segments_in
from tests.store.disk.test_writer import Breaking

SHAPE = layout(4096, chunk=64)  # records of up to 68 KiB
BUDGET = 4 << 20


def fill(rig: Rig, count: int, first: int = 0) -> dict[int, tuple[Chat, Ints]]:
    """So many conversations of one full record each, by seed."""
    return {seed: (chat := Chat(seed), rig.save(chat, 0, 64)) for seed in range(first, first + count)}


def total(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_a_segment_goes_with_its_last_record(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept = fill(rig, 9)
    before = segments_in(tmp_path / "c")
    assert len(before) == 3
    for seed in range(3):
        rig.run([Forget(kept.pop(seed)[1])])
    assert segments_in(tmp_path / "c") == before[1:]
    assert rig.store.stats().segments == 2
    assert all(rig.holds(chat, 0, 64, slots) for chat, slots in kept.values())


def test_a_segment_that_is_being_read_can_go(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept = fill(rig, 6)
    segments = rig.store._tools.segments
    with segments.reading(1) as fd:
        for _, slots in list(kept.values())[:3]:
            rig.run([Forget(slots)])
        assert 1 not in segments.all
        assert len(rig.files.preadv(fd, [memoryview(bytearray(10))], 0).to_bytes(1, "big")) == 1
    assert not (tmp_path / "c").joinpath("00000001.seg").exists()


def test_it_stays_within_its_budget_and_keeps_what_it_should(tmp_path: Path) -> None:
    """Random forgetting leaves holes everywhere; they are reclaimed, at a bounded price."""
    rng = random.Random(3)
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept = fill(rig, 46)
    largest = 0
    for seed in range(100, 170):
        rig.run([Forget(kept.pop(rng.choice(list(kept)))[1])])
        kept |= fill(rig, 1, seed)
        largest = max(largest, rig.store.usage)
    assert largest <= BUDGET
    stats = rig.store.stats()
    assert stats.compactions > 0
    assert stats.bytes_written < 1.1 * stats.bytes_demoted
    assert 0 < stats.bytes_rewritten < 5 * stats.bytes_written
    assert stats.failed_writes == 0
    assert all(rig.holds(chat, 0, 64, slots) for chat, slots in kept.values())
    rig = rig.again()
    assert rig.store.catalogue.pages == 46 * 16
    assert all(rig.recall(chat) == (64, 0) for chat, _ in kept.values())


def test_pieces_and_dormant_records_survive_a_compaction(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    chat, dormant, useless = Chat(1000), Chat(1001), Chat(1002)
    rig.save(chat, 0, 64)
    rig.save_image(chat, 64)
    rig.save(dormant, 0, 64)
    rig.save(useless, 0, 64)
    rig = rig.again()
    [first] = segments_in(tmp_path / "c")
    trail = rig.trail(chat)
    under = {d.name.digest: d for d in rig.under(trail.root)}
    slots = rig.adopt(under[trail.at(64)])
    image = rig.adopt(rig.under(trail.at(64))[0])
    rig.store.catalogue.discard(under[rig.trail(useless).at(64)])
    rig.run([Divide(int(slots[3]), int(slots[4]), 16, trail.at(16)), Forget(slots[:3])])
    _, write = near_full(rig, 42, 6)
    while first.exists():
        assert write()
    assert rig.store.stats().bytes_rewritten > 0
    assert rig.holds(chat, 16, 64, slots[4:])
    assert rig.holds(chat, 12, 16, slots[3:4])
    assert rig.holds_image(chat, 64, image)
    assert rig.recall(dormant) == (64, 0)
    rig.run([Forget(slots[3:4])])
    rig = rig.again()
    found = rig.under(rig.trail(chat).at(16))
    assert [(d.name.start, d.name.end, d.pages) for d in found] == [(16, 64, 12)]
    assert rig.holds(chat, 16, 64, rig.adopt(found[0]))


def test_readers_go_on_while_segments_are_rewritten_under_them(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept = fill(rig, 46)
    stable = [kept.pop(seed) for seed in range(0, 46, 5)]
    stop, failures = threading.Event(), list[BaseException]()

    def read(first: int) -> None:
        memory = rig.gate.memory(16)
        turn = first
        while not stop.is_set():
            chat, slots = stable[turn % len(stable)]
            turn += 1
            try:
                move = rig_move(rig, slots)
                right = chat.kv(0, 64, 4096)
                rig.store.read(move, memory, lambda part, rows, right=right: check((rows == right[part]).all()))
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    rng = random.Random(5)
    for seed in range(100, 140):
        rig.run([Forget(kept.pop(rng.choice(list(kept)))[1])])
        kept |= fill(rig, 1, seed)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert rig.store.stats().compactions > 0


def rig_move(rig: Rig, slots: Ints) -> Move:
    return Move(next(rig.tickets), "kv", Extent(Tier.DISK, slots), LiveState(0), 64)


def check(good: bool) -> None:
    assert good, "a wrong byte"


COMPACTING = [name for name in POINTS if name.startswith("compact")]


def near_full(rig: Rig, count: int = 46, step: int = 3) -> tuple[dict[int, tuple[Chat, Ints]], Callable[[], bool]]:
    """A store in which the next write needs a compaction, and that write."""
    kept = fill(rig, count)
    for seed in range(0, count, step):
        rig.run([Forget(kept.pop(seed)[1])])
    seeds = iter(range(500, 600))

    def write() -> bool:
        chat, slots = Chat(seed := next(seeds)), rig.take(16)
        [report] = rig.run([rig.saving(chat, 0, 64, slots)])
        if report.ok:
            kept[seed] = (chat, slots)
        return report.ok

    return kept, write


@pytest.mark.parametrize("at", COMPACTING)
def test_failing_at_any_point_of_a_compaction_loses_nothing(tmp_path: Path, at: str) -> None:
    points = Breaking(at, OSError(errno.EIO, "injected"))
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET, points=points)
    kept, write = near_full(rig)
    while at not in points.passed:
        good = write()
    assert not good
    assert all(rig.holds(chat, 0, 64, slots) for chat, slots in kept.values())
    rig.clock.advance(100)
    assert write()
    assert all(rig.holds(chat, 0, 64, slots) for chat, slots in kept.values())
    assert rig.store.usage <= BUDGET
    rig = rig.again()
    assert all(rig.recall(chat) == (64, 0) for chat, _ in kept.values())


@pytest.mark.parametrize("call", ["write", "read", "sync", "unlink"])
def test_a_disk_that_fails_during_a_compaction_loses_nothing(tmp_path: Path, call: str) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept, write = near_full(rig)
    rig.files.fail(call, errno.EIO)
    for _ in range(12):
        write()
    assert rig.files.injected
    rig.files.heal()
    assert all(rig.holds(chat, 0, 64, slots) for chat, slots in kept.values())
    rig.clock.advance(100)
    assert write()
    rig = rig.again()
    assert all(rig.recall(chat) == (64, 0) for chat, _ in kept.values())


def test_a_damaged_record_is_not_carried_along(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept, write = near_full(rig)
    _, slots = kept.pop(1)
    [first, *_] = segments_in(tmp_path / "c")
    with first.open("r+b") as file:
        file.seek(72 * 1024 + 5000)
        file.write(b"damage")
    while first.exists():
        assert write()
    with pytest.raises(Exception, match="holds nothing"):
        rig.read(slots, 64)
    assert rig.store.stats().quarantined == 1
    assert all(rig.holds(chat, 0, 64, slots) for chat, slots in kept.values())


def test_what_is_full_of_live_records_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    reports = [rig.run([rig.saving(Chat(seed), 0, 64, rig.take(16))])[0] for seed in range(51)]
    more = [rig.run([rig.saving(Chat(seed), 0, 4, rig.take(1))])[0] for seed in range(100, 103)]
    assert all(r.ok for r in reports[:50])
    assert rig.store.usage <= BUDGET
    refused = [r.error for r in [*reports, *more] if not r.ok]
    assert all("no room" in error and "--disk-cache" in error for error in refused)


def test_other_namespaces_make_room_the_one_opened_longest_ago_first(tmp_path: Path) -> None:
    path = tmp_path / "c"
    for letter in b"abc":
        shape = Layout(4096, 4, 3, 64, bytes([letter]) * 32)
        rig = Rig(path, shape=shape, budget=BUDGET)
        fill(rig, 10)
        rig.store.close()
        label = next(path.glob(f"{bytes([letter]).hex()}*/namespace.json"))
        os.utime(label, (letter * 1000, letter * 1000))
    rig = Rig(path, shape=SHAPE, budget=BUDGET)
    link = path / ("e" * 16)
    link.symlink_to(tmp_path)
    seen: list[list[str]] = []
    for seed in range(46):
        fill(rig, 1, seed)
        names = sorted(entry.name[:2] for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink())
        if not seen or names != seen[-1]:
            seen.append(names)
    assert seen == [["61", "62", "63", "66"], ["62", "63", "66"], ["63", "66"], ["66"]]
    assert rig.store.usage <= BUDGET
    assert tmp_path.exists()


def test_small_records_full_of_headers_are_not_rewritten_in_vain(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")  # pages of 64 bytes: headers take a third of the files
    rig.files.done_with = lambda fd, offset, length: None  # type: ignore[method-assign]
    reports = []
    for seed in range(1000):
        chat, slots = Chat(seed, 160), rig.take(40)
        reports += rig.run([rig.saving(chat, 0, 160, slots)])
        if not reports[-1].ok:
            break
    assert "no room" in reports[-1].error
    assert rig.store.stats().bytes_rewritten == 0
    assert rig.store.usage <= rig.budget


def test_a_segment_that_someone_removed_does_not_stop_the_writing(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept, write = near_full(rig)
    segments_in(tmp_path / "c")[0].unlink()
    assert all(write() for _ in range(3))
    assert not rig.store.stats().problems
    assert all(rig.holds(chat, 0, 64, slots) for seed, (chat, slots) in kept.items() if seed > 2)


def test_a_folder_that_has_vanished_may_come_back(tmp_path: Path) -> None:
    """Nothing is taken for lost meanwhile."""
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept, write = near_full(rig)
    (tmp_path / "c").rename(tmp_path / "away")
    assert not write()
    (tmp_path / "away").rename(tmp_path / "c")
    rig.clock.advance(100)
    assert write()
    assert all(rig.holds(chat, 0, 64, slots) for chat, slots in kept.values())


def test_a_segment_that_cannot_be_read_does_not_stop_the_writing_for_good(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c", shape=SHAPE, budget=BUDGET)
    kept, write = near_full(rig)
    rig.run([Forget(kept.pop(1)[1])])  # the first segment has the least to copy
    [bad, *_] = segments_in(tmp_path / "c")
    inner = rig.files.preadv

    def preadv(fd: int, buffers: Buffers, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") == str(bad):
            raise OSError(errno.EIO, "bad sector")
        return inner(fd, buffers, offset)

    rig.files.preadv = preadv  # type: ignore[method-assign]
    good = [write()]
    while good[-1]:
        good.append(write())
    rig.clock.advance(100)
    assert all(write() for _ in range(3))
    assert all(rig.holds(chat, 0, 64, slots) for seed, (chat, slots) in kept.items() if seed > 2)


def test_what_goes_in_the_same_batch_makes_room(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")  # pages of 64 bytes: out of bytes before it is out of slots
    rig.files.done_with = lambda fd, offset, length: None  # type: ignore[method-assign]
    kept: list[Ints] = []
    while True:
        slots = rig.take(40)
        [report] = rig.run([rig.saving(Chat(len(kept), 160), 0, 160, slots)])
        if not report.ok:
            break
        kept.append(slots)
    [report] = rig.run([*map(Forget, kept[:60]), rig.saving(Chat(1000, 160), 0, 160, slots)])
    assert report.ok, report.error
    assert rig.store.usage <= rig.budget
