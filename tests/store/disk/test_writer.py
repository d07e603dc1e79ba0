"""When the system fails a batch: reported, nothing half-made is ever found, and writing goes on by itself later."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Forget
from stepwell.store.disk import segments as appending
from stepwell.store.disk.files import POINTS
from stepwell.testing.disk import FaultyFiles
from tests.store.disk.rig import Chat, Rig, bytes_in, segments_in


def seconds_of_pauses(rig: Rig, chat: Chat, times: int) -> list[float]:
    """How long the store pauses after each of so many failures in a row."""
    pauses: list[float] = []
    for _ in range(times):
        [report] = rig.run([rig.saving(chat, 0, 16, rig.take(4))])
        assert not report.ok
        pauses.append(rig.store.stats().paused_until - rig.clock.now())
        rig.clock.advance_to(rig.store.stats().paused_until)
    return pauses


FAULTS: dict[str, Callable[[FaultyFiles], None]] = {
    "EIO on a write": lambda files: files.fail("write", errno.EIO),
    "EIO on the second write": lambda files: files.fail("write", errno.EIO, after=1),
    "EIO on a sync": lambda files: files.fail("sync", errno.EIO),
    "EDQUOT on a write": lambda files: files.fail("write", errno.EDQUOT, after=1),
    "no room for the file": lambda files: files.fail("create", errno.ENOSPC),
    "no room": lambda files: files.fill(500),
    "read-only": lambda files: files.read_only(),
    "EIO on reading back": lambda files: files.fail("read", errno.EIO),
    "another byte on reading back": lambda files: files.flip(1000),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_write_is_reported_leaves_nothing_and_passes(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig, old, new = Rig(tmp_path / "c"), Chat(1), Chat(2)
    slots = rig.save(old, 0, 32)
    published = bytes_in(segments_in(tmp_path / "c"))
    FAULTS[fault](rig.files)
    if fault == "no room for the file":
        rig = rig.again(files=rig.files)  # so that a new segment is needed
        slots = rig.adopt(rig.under(rig.trail(old).root)[0])
    with caplog.at_level(logging.WARNING, "stepwell.store.disk"):
        first, second = rig.run([rig.saving(new, 0, 32, rig.take(8)), rig.saving_image(new, 32, rig.take(3))])
        assert not first.ok and not second.ok
        assert "stopped writing" in first.error
        [third] = rig.run([rig.saving(new, 0, 32, rig.take(8))])
        assert "stopped writing" in third.error
    stats = rig.store.stats()
    assert stats.failed_writes == 3
    assert sum(stats.problems.values()) == 1
    assert stats.paused_until == rig.clock.now() + 1
    assert len(caplog.records) == 1
    rig.files.heal()
    assert rig.holds(old, 0, 16, slots[:4])
    rig.clock.advance(1)
    rig.save(new, 0, 16)
    assert rig.store.stats().paused_until == 0
    rig = rig.again()
    assert rig.recall(old) == (32, 0)
    assert rig.recall(new) == (16, 0)
    assert bytes_in(segments_in(tmp_path / "c")) <= published + 2000


def test_pauses_double_up_to_a_minute_and_each_cause_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.files.fail("write", errno.EIO)
    with caplog.at_level(logging.WARNING, "stepwell.store.disk"):
        assert seconds_of_pauses(rig, chat, 8) == [1, 2, 4, 8, 16, 32, 60, 60]
    assert rig.store.stats().problems == {"EIO": 8}
    assert len(caplog.records) == 1
    rig.files.heal()
    rig.save(chat, 0, 16)
    rig.files.fail("write", errno.EIO)
    assert seconds_of_pauses(rig, Chat(9), 1) == [1]


def test_nothing_touches_the_disk_during_a_pause(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.files.fail("write", errno.EIO)
    rig.run([rig.saving(chat, 0, 16, rig.take(4))])
    before = dict(rig.files.calls)
    for _ in range(5):
        rig.run([rig.saving(chat, 0, 16, rig.take(4))])
    assert dict(rig.files.calls) == before


def test_a_trial_comes_before_the_next_write(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.files.fail("sync", errno.EIO, count=1)
    rig.run([rig.saving(chat, 0, 16, rig.take(4))])
    rig.clock.advance(1)
    rig.files.heal()
    rig.save(chat, 0, 16)
    assert [path.name for path in (tmp_path / "c").glob("*/segments/*")] == ["00000002.seg"]


@pytest.mark.parametrize("most", [1, 7, 100])
def test_short_reads_and_writes_are_carried_on(tmp_path: Path, most: int) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.files.dribble(most)
    slots = rig.save(chat, 0, 32)
    assert rig.holds(chat, 0, 32, slots)


def test_a_folder_that_is_moved_away_stops_the_writing_until_it_is_back(tmp_path: Path) -> None:
    rig, chat, new = Rig(tmp_path / "c"), Chat(1), Chat(2)
    slots = rig.save(chat, 0, 16)
    assert rig.holds(chat, 0, 16, slots)
    (tmp_path / "c").rename(tmp_path / "away")
    [report] = rig.run([rig.saving(new, 0, 16, rig.take(4))])
    assert not report.ok
    assert rig.store.stats().problems == {"ENOENT": 1}
    assert rig.holds(chat, 0, 16, slots)  # its descriptor is still open
    rig.clock.advance(1)
    [report] = rig.run([rig.saving(new, 0, 16, rig.take(4))])
    assert not report.ok
    (tmp_path / "away").rename(tmp_path / "c")
    rig.clock.advance(2)
    rig.save(new, 0, 16)
    assert rig.again().recall(new) == (16, 0)


def test_forgetting_during_a_pause_is_not_forgotten(tmp_path: Path) -> None:
    rig, one, two = Rig(tmp_path / "c"), Chat(1), Chat(2)
    slots = rig.save(one, 0, 16)
    rig.save(two, 0, 16)
    rig.files.fail("write", errno.EIO)
    rig.run([rig.saving(Chat(3), 0, 16, rig.take(4))])
    rig.run([Forget(slots)])
    with pytest.raises(StoreError, match="holds nothing"):
        rig.read(slots, 16)
    rig.files.heal()
    rig = rig.again()
    assert (rig.recall(one), rig.recall(two)) == ((0, 0), (16, 0))


class Breaking:
    """Raises at one point, a number of times."""

    def __init__(self, at: str, error: Exception, times: int = 1) -> None:
        self.at, self.error, self.times = at, error, times
        self.passed: list[str] = []

    def __call__(self, name: str) -> None:
        self.passed.append(name)
        if name == self.at and self.times:
            self.times -= 1
            raise self.error


WRITING = [name for name in POINTS if name.split(".")[0] in ("segment", "write", "verify", "sync", "insert", "commit")]


@pytest.mark.parametrize("at", WRITING)
@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "injected"), sqlite3.OperationalError("disk I/O error")], ids=["os", "sqlite"]
)
def test_failing_at_any_point_of_a_write_fails_the_move_alone(tmp_path: Path, at: str, error: Exception) -> None:
    if isinstance(error, sqlite3.Error):
        error.sqlite_errorname = "SQLITE_IOERR"  # type: ignore[attr-defined]
    points = Breaking(at, error)
    rig, old, new = Rig(tmp_path / "c", points=points), Chat(1), Chat(2)
    points.times = 0
    slots = rig.save(old, 0, 16)
    rig = rig.again(points=points)  # so that a new segment is needed
    [dormant] = rig.under(rig.trail(old).root)
    slots = rig.adopt(dormant)
    rig.run([])
    points.times = 1
    target = rig.take(4)
    [report] = rig.run([rig.saving(new, 0, 16, target)])
    assert not report.ok, at
    assert at in points.passed
    with pytest.raises(StoreError):
        rig.read(target, 16)
    assert rig.holds(old, 0, 16, slots)
    rig.clock.advance(1)
    target = rig.take(4)
    [report] = rig.run([Forget(slots), rig.saving(new, 0, 16, target)])
    assert report.ok, report.error
    assert rig.holds(new, 0, 16, target)
    rig = rig.again()
    assert (rig.recall(old), rig.recall(new)) == ((0, 0), (16, 0))


def test_points_are_passed_in_the_order_in_which_they_are_numbered(tmp_path: Path) -> None:
    points = Breaking("", ValueError())
    rig = Rig(tmp_path / "c", points=points)
    rig.save(Chat(1), 0, 16)
    assert points.passed == [name for name in POINTS if name in WRITING]


def test_a_full_index_fails_the_move_and_recovers(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 16)
    connection = rig.store._tools.ledger._manifest._connection
    [(pages,)] = connection.execute("PRAGMA page_count")
    connection.execute(f"PRAGMA max_page_count = {pages}")
    reports = [rig.run([rig.saving(Chat(seed), 0, 64, rig.take(16))])[0] for seed in range(2, 40)]
    assert reports[0].ok and not reports[-1].ok
    assert rig.store.stats().problems == {"SQLITE_FULL": 1}
    connection.execute("PRAGMA max_page_count = 100000")
    rig.clock.advance(1)
    rig.save(Chat(100), 0, 64)
    rig = rig.again()
    assert rig.recall(chat) == (16, 0)
    assert rig.recall(Chat(100)) == (64, 0)


def test_an_index_that_is_ruined_under_way_makes_a_tier_that_misses(tmp_path: Path) -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorname = "SQLITE_CORRUPT"  # type: ignore[attr-defined]
    points = Breaking("insert.before", error, 0)
    rig, one, two = Rig(tmp_path / "c", points=points), Chat(1), Chat(2)
    rig.save(one, 0, 16)
    rig.save(two, 0, 16)
    rig = rig.again(points=points)
    slots = rig.adopt(rig.under(rig.trail(one).root)[0])
    points.times = 1
    reports = [rig.run([rig.saving(Chat(seed), 0, 16, rig.take(4))])[0] for seed in range(2, 6)]
    assert [report.ok for report in reports] == [False] * 4
    assert "begins anew at the next start" in reports[-1].error
    assert rig.store.stats().problems == {"SQLITE_CORRUPT": 1}
    assert list(rig.under(rig.trail(two).root)) == []
    assert rig.recall(two) == (0, 0)
    assert len(rig.read(slots, 16)) == 4  # what is known by its place is still read
    rig.run([Forget(slots)])
    rig = rig.again()
    assert (rig.recall(one), rig.recall(two)) == ((0, 0), (0, 0))
    rig.save(one, 0, 16)
    assert rig.again().recall(one) == (16, 0)


def test_an_unreadable_source_fails_its_own_move(tmp_path: Path) -> None:
    rig, one, two = Rig(tmp_path / "c"), Chat(1), Chat(2)
    bad = rig.saving(one, 0, 16, rig.take(4))
    rig.host.rows[1, 0] ^= 1
    image = rig.saving_image(two, 16, rig.take(3))
    first, second = rig.run([bad, image])
    assert not first.ok and "host slot 1 fails its checksum" in first.error
    assert second.ok
    assert rig.store.stats().problems == {}


def test_an_unreadable_page_is_a_failed_read_and_no_more(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots = rig.save(chat, 0, 16)
    rig.files.fail("read", errno.EIO, count=1)
    with pytest.raises(OSError, match=r"Input/output"):
        rig.read(slots, 16)
    assert rig.holds(chat, 0, 16, slots)
    stats = rig.store.stats()
    assert (stats.failed_reads, stats.quarantined) == (1, 0)


@pytest.mark.parametrize("after", [0, 1])
def test_a_flush_that_fails_beside_the_writing_fails_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """A file tells of a lost write once: whoever hears of it first must not keep it to himself."""
    monkeypatch.setattr(appending, "FLUSH_BYTES", 400)
    rig, chat = Rig(tmp_path / "c"), Chat(1, 320)
    rig.save(Chat(2), 0, 64)
    rig.files.fail("sync", errno.EIO, after=after, count=1)
    [report] = rig.run([rig.saving(chat, 0, 240, rig.take(60))])
    assert not report.ok
    rig.clock.advance(1)
    slots = rig.save(chat, 0, 240)
    assert rig.holds(chat, 0, 240, slots)
    assert rig.again().recall(chat) == (240, 0)
