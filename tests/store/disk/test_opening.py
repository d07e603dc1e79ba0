"""Whatever ended the last process, the next one finds index and files in agreement, and nothing that was not finished."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

import pytest

from stepwell.cache.moves import Forget
from stepwell.store.disk.files import POINTS
from tests.store.disk.rig import Chat, Rig, layout, manifest_in, segments_in


class Died(BaseException):
    """The process ends here."""


class Dying:
    """Ends the process at one point, once armed."""

    def __init__(self, at: str) -> None:
        self.at, self.armed = at, False

    def __call__(self, name: str) -> None:
        if self.armed and name == self.at:
            raise Died


WRITING = [name for name in POINTS if name.split(".")[0] in ("segment", "write", "verify", "sync", "insert", "commit")]


def next_life(rig: Rig) -> Rig:
    """What a process finds whose predecessor was killed: nothing was closed."""
    rig.store._owned.lock.close()
    return Rig(rig.path, shape=rig.shape, budget=rig.budget)


@pytest.mark.parametrize("at", WRITING)
def test_killed_at_any_point_of_a_write(tmp_path: Path, at: str) -> None:
    points = Dying(at)
    rig, old, new = Rig(tmp_path / "c", points=points), Chat(1), Chat(2)
    rig.save(old, 0, 32)
    rig = rig.again(points=points)
    points.armed = True
    with pytest.raises(Died):
        rig.run([rig.saving(new, 0, 16, rig.take(4))])
    rig = next_life(rig)
    assert rig.recall(old) == (32, 0)
    assert rig.recall(new) == ((16, 0) if at == "commit.after" else (0, 0))
    published = sum(segment.length for segment in rig.store._tools.segments.all.values())
    assert sum(path.stat().st_size for path in segments_in(tmp_path / "c")) == published
    rig.save(Chat(3), 0, 32)
    rig = rig.again()
    assert (rig.recall(old), rig.recall(Chat(3))) == ((32, 0), (32, 0))


@pytest.mark.parametrize("at", ["unlink.before", "unlink.after"])
def test_killed_while_a_segment_goes(tmp_path: Path, at: str) -> None:
    points = Dying(at)
    rig, one, two = Rig(tmp_path / "c", points=points), Chat(1), Chat(2)
    rig.save(one, 0, 32)
    rig = rig.again(points=points)
    rig.save(two, 0, 32)
    slots = [rig.adopt(d) for at_ in (0, 16) for d in rig.under(rig.trail(one).at(at_))]
    points.armed = True
    with pytest.raises(Died):
        rig.run([Forget(part) for part in slots])
    rig = next_life(rig)
    assert (rig.recall(one), rig.recall(two)) == ((0, 0), (32, 0))
    rig.save(Chat(3), 0, 16)
    assert len(segments_in(tmp_path / "c")) == 2


@pytest.mark.parametrize("at", [name for name in POINTS if name.startswith("compact")])
def test_killed_at_any_point_of_a_compaction(tmp_path: Path, at: str) -> None:
    points, shape, budget = Dying(at), layout(4096, chunk=64), 4 << 20
    rig = Rig(tmp_path / "c", shape=shape, budget=budget, points=points)
    kept = {seed: (chat := Chat(seed), rig.save(chat, 0, 64)) for seed in range(46)}
    for seed in range(0, 46, 3):
        rig.run([Forget(kept.pop(seed)[1])])
    points.armed = True
    with pytest.raises(Died):
        for seed in range(100, 115):
            chat = Chat(seed)
            kept[seed] = (chat, rig.save(chat, 0, 64))
    rig = next_life(rig)
    for chat, _ in kept.values():
        assert rig.recall(chat) == (64, 0)
    assert rig.store.usage <= budget


@pytest.mark.parametrize("tail", ["cut", "zeros", "noise"])
@pytest.mark.parametrize("at", ["write.after", "sync.before", "sync.after", "insert.after"])
def test_power_lost_on_the_way(tmp_path: Path, tail: Literal["cut", "zeros", "noise"], at: str) -> None:
    points = Dying(at)
    rig, old, new = Rig(tmp_path / "c", points=points), Chat(1), Chat(2)
    rig.save(old, 0, 32)
    points.armed = True
    with pytest.raises(Died):
        rig.run([rig.saving(new, 0, 16, rig.take(4))])
    rig.files.lose_power(tail)
    rig = next_life(rig)
    assert (rig.recall(old), rig.recall(new)) == ((32, 0), (0, 0))


def test_power_lost_with_the_last_commits(tmp_path: Path) -> None:
    """The index may fall back in time, to commits that were durable: files are newer then."""
    rig, old, new = Rig(tmp_path / "c"), Chat(1), Chat(2)
    slots = rig.save(old, 0, 32)
    rig.store._owned.index.checkpoint()
    index = manifest_in(tmp_path / "c").read_bytes()
    rig.save(new, 0, 32)
    rig.run([Forget(slots)])
    rig.store.close()
    manifest_in(tmp_path / "c").write_bytes(index)
    rig = Rig(tmp_path / "c")
    assert rig.recall(new) == (0, 0)
    assert rig.recall(old) == (32, 0)  # forgotten by a commit that was lost: still what its name says


def test_rows_without_their_file_go(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 32)
    rig.store.close()
    for path in segments_in(tmp_path / "c"):
        path.unlink()
    rig = Rig(tmp_path / "c")
    assert rig.store.catalogue.pages == 0
    assert rig.recall(chat) == (0, 0)
    rig.save(chat, 0, 32)
    assert rig.again().recall(chat) == (32, 0)


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\0" + bytes(4000)])
def test_an_index_that_is_none_begins_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 32)
    rig.store.close()
    manifest_in(tmp_path / "c").write_bytes(content)
    rig = Rig(tmp_path / "c")
    assert rig.recall(chat) == (0, 0)
    assert segments_in(tmp_path / "c") == []
    assert len(caplog.records) == sum(rig.store.stats().problems.values()) == (1 if content else 0)
    rig.save(chat, 0, 32)
    assert rig.again().recall(chat) == (32, 0)


def test_an_index_with_tables_triggers_or_views_of_another_begins_anew(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 32)
    rig.store.close()
    connection = sqlite3.connect(manifest_in(tmp_path / "c"))
    connection.execute("CREATE TRIGGER trap AFTER DELETE ON record BEGIN DELETE FROM segment; END")
    connection.commit()
    connection.close()
    rig = Rig(tmp_path / "c")
    assert rig.recall(Chat(1)) == (0, 0)
    assert rig.store.stats().problems == {"Unusable": 1}


def test_a_link_in_place_of_the_index_is_not_followed(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    rig.store.close()
    index = manifest_in(tmp_path / "c")
    index.rename(tmp_path / "elsewhere")
    index.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 32)
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_opening_reads_a_few_rows_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in steps of SQLite's machine: the start must not wait for a million records."""
    rig = Rig(tmp_path / "c")
    for seed in range(150):
        rig.save(Chat(seed), 0, 64)
    rig.store.close()
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    class Counting(sqlite3.Connection):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            self.set_progress_handler(count, 1)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Counting, **kwargs))
    rig = Rig(tmp_path / "c")
    assert rig.store.catalogue.pages == 150 * 16
    assert 0 < steps < 600  # there are 600 rows


def test_an_index_with_tables_of_anyone_else_begins_anew(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 16)
    rig.store.close()
    connection = sqlite3.connect(manifest_in(tmp_path / "c"))
    connection.execute("CREATE TABLE other (name TEXT UNIQUE)")  # makes an index without a statement of its own
    connection.commit()
    connection.close()
    rig = Rig(tmp_path / "c")
    assert rig.recall(Chat(1)) == (0, 0)
    rig.save(Chat(1), 0, 16)
