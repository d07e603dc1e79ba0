"""The store as the directory sees it: what went in comes out, in this life and the next, or is a miss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepwell.base.errors import ConfigError, StoreError
from stepwell.cache.moves import Divide, Extent, Forget, LiveState, Move, Tier, Touch
from stepwell.store.disk.record import Layout
from stepwell.store.disk.store import DiskStore
from tests.store.disk.rig import BLOCK, IMAGE_PAGES, Chat, Rig, ints, layout, segments_in


@pytest.mark.parametrize("page_bytes", [1, 7, 64, 1000, 4096, 8192])
def test_pages_of_any_size_come_back_in_this_life_and_the_next(tmp_path: Path, page_bytes: int) -> None:
    rig, chat = Rig(tmp_path / "c", shape=layout(page_bytes), budget=4 << 20), Chat(1)
    slots, image = rig.save(chat, 0, 44), rig.save_image(chat, 40)
    assert rig.holds(chat, 0, 44, slots)
    assert rig.holds_image(chat, 40, image)
    rig = rig.again()
    assert rig.store.catalogue.pages == 14
    assert rig.recall(chat) == (44, 0)
    assert len(rig.under(rig.trail(chat).at(40))) == 1  # the image: 40 is no record's end, as no Divide has said so


def test_any_part_of_a_record_can_be_read(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots = rig.save(chat, 0, 48)
    for start in range(12):
        for end in range(start, 13):
            assert rig.holds(chat, start * 4, end * 4, slots[start:end]) if end > start else True


def test_a_move_longer_than_the_reader_s_memory_is_delivered_in_parts(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1, 160)
    slots = rig.save(chat, 0, 160)
    parts: list[slice] = []
    move = Move(99, "kv", Extent(Tier.DISK, slots), LiveState(0), 160)
    rig.store.read(move, rig.memory, lambda part, rows: parts.append(part))
    assert parts == [slice(0, 16), slice(16, 32), slice(32, 40)]


def test_a_record_ends_where_a_divide_says(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots = rig.save(chat, 0, 16)
    branch = chat.fork(8, 2)
    other = rig.take(2)
    at = rig.trail(chat).at(8)
    assert at == rig.trail(branch).at(8)
    rig.run([Divide(int(slots[1]), int(slots[2]), 8, at), rig.saving(branch, 8, 16, other)])
    assert rig.holds(chat, 0, 16, slots)
    assert rig.holds(chat, 8, 16, slots[2:])
    rig = rig.again()
    assert rig.recall(chat) == (16, 0)
    rig = rig.again()
    assert rig.recall(branch) == (16, 0)


def test_halves_of_a_divided_record_are_forgotten_apart(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots = rig.save(chat, 0, 16)
    rig.run([Divide(int(slots[1]), int(slots[2]), 8, rig.trail(chat).at(8)), Forget(slots[2:])])
    assert rig.holds(chat, 0, 8, slots[:2])
    with pytest.raises(StoreError, match="holds nothing"):
        rig.read(slots[2:], 16)
    rig = rig.again()
    assert rig.recall(chat) == (8, 0)


@pytest.mark.parametrize(
    "order",
    [
        Divide(1, 0, 4, b"x" * 16),  # in the wrong order
        Divide(0, 2, 8, b"x" * 16),  # not next to each other
        Divide(3, 4, 16, b"x" * 16),  # of two records
        Divide(0, 1, 8, b"x" * 16),  # at another token
        Divide(0, 9_999_999, 4, b"x" * 16),
        Divide(100, 101, 4, b"x" * 16),  # of nothing
    ],
)
def test_a_divide_that_does_not_fit_changes_nothing(tmp_path: Path, order: Divide) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots = rig.save(chat, 0, 32)
    assert slots.tolist() == list(range(8))
    rig.run([order])
    assert rig.recall(chat) == (0, 0)  # nothing is dormant in the process that wrote it
    assert rig.again().recall(chat) == (32, 0)


def test_an_image_is_not_divided(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    image = rig.save_image(chat, 16)
    rig.run([Divide(int(image[0]), int(image[1]), 16 + BLOCK, b"x" * 16)])
    assert rig.holds_image(chat, 16, image)


def test_what_is_forgotten_in_part_is_read_but_not_found_again(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots = rig.save(chat, 0, 16)
    rig.run([Forget(slots[1:2])])
    assert rig.holds(chat, 0, 4, slots[:1])
    assert rig.holds(chat, 8, 16, slots[2:])
    assert rig.again().recall(chat) == (0, 0)


def test_an_image_forgotten_in_part_is_gone(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    image = rig.save_image(chat, 16)
    rig.run([Forget(image[:1])])
    with pytest.raises(StoreError, match="holds nothing"):
        rig.read(image[1:], 16)


def test_forgotten_slots_are_used_again(tmp_path: Path) -> None:
    rig, one, two = Rig(tmp_path / "c"), Chat(1), Chat(2)
    slots = rig.save(one, 0, 16)
    [report] = rig.run([Forget(slots), rig.saving(two, 0, 16, slots)])
    assert report.ok
    assert rig.holds(two, 0, 16, slots)
    rig = rig.again()
    assert (rig.recall(one), rig.recall(two)) == ((0, 0), (16, 0))


def test_other_positions_are_refused(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots, image = rig.save(chat, 0, 32), rig.save_image(chat, 16)
    for wrong in (slots[::-1], slots[1:], ints(*slots[:4], *slots[:4])):
        with pytest.raises(StoreError, match="another position"):
            rig.read(wrong.copy(), 16)
    rig2 = Rig(tmp_path / "d")
    slots, image = rig2.save(chat, 0, 32), rig2.save_image(chat, 16)
    for bad, end, what in ((image, 20, "image"), (image, 16, "kv"), (slots[:3], 12, "image")):
        with pytest.raises(StoreError):
            rig2.read(bad, end, what)


@pytest.mark.parametrize("slots", [(-1, 0), (0, 1 << 30)])
def test_slots_that_are_not_there_are_refused(tmp_path: Path, slots: tuple[int, ...]) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    with pytest.raises(StoreError, match="of the disk"):
        rig.read(ints(*slots), 8)
    [report] = rig.run([rig.saving(chat, 0, 8, ints(*slots))])
    assert not report.ok
    rig.run([Forget(ints(*slots)), Touch(ints(*slots))])


def test_moves_that_do_not_say_what_they_bring_are_refused(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    good = rig.saving(chat, 0, 16, rig.take(4))
    target = good.target
    assert isinstance(target, Extent)
    names = good.names
    bad = [
        Move(101, "kv", good.source, target, 16, ()),
        Move(102, "kv", good.source, target, 12, names),
        Move(103, "image", good.source, target, 16, names),
        Move(104, "kv", Extent(Tier.HOST, ints(0)), target, 16, names),
        Move(105, "kv", good.source, Extent(Tier.DISK, target.slots[:2]), 16, names),
        Move(106, "kv", Extent(Tier.DEVICE, good.source.slots), target, 16, names),
        Move(107, "kv", Extent(Tier.HOST, ints(40, 41, 42, 43)), target, 16, names),  # never written
    ]
    reports = rig.run([*bad, good])
    assert [(r.ticket, r.ok) for r in reports] == [(m.ticket, False) for m in bad] + [(good.ticket, True)]
    assert all(r.error for r in reports[:-1])
    assert rig.store.stats().problems == {}
    assert rig.again().recall(chat) == (16, 0)


def test_bytes_under_a_known_name_are_not_written_twice(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    first = rig.save(chat, 0, 32)
    written = rig.store.stats().bytes_written
    second = rig.save(chat, 0, 32)
    stats = rig.store.stats()
    assert (stats.bytes_written, stats.deduplicated) == (written, 2)
    assert stats.bytes_demoted == 16 * 64
    rig.run([Forget(first)])
    assert rig.holds(chat, 0, 32, second)
    rig = rig.again()
    third = rig.save(chat, 0, 16)  # what an earlier process left is taken over
    stats = rig.store.stats()
    assert (stats.bytes_written, stats.deduplicated, stats.dormant_pages) == (0, 1, 4)
    assert rig.holds(chat, 0, 16, third)
    rig.run([Forget(third)])
    assert rig.again().recall(chat) == (0, 0)


def test_a_record_that_writer_and_engine_take_at_once_serves_both(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 16)
    rig = rig.again()
    [dormant] = rig.under(rig.trail(chat).root)
    mine = rig.save(chat, 0, 16)
    theirs = rig.adopt(dormant)
    assert rig.holds(chat, 0, 16, theirs)
    rig.run([Forget(mine)])
    assert rig.holds(chat, 0, 16, theirs)
    assert rig.again().recall(chat) == (16, 0)


def test_an_adopted_record_is_forgotten_and_divided_like_any(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 32)
    rig = rig.again()
    trail = rig.trail(chat)
    [first] = rig.under(trail.root)
    [second] = rig.under(trail.at(16))
    slots, more = rig.adopt(first), rig.adopt(second)
    assert rig.store.catalogue.pages == 0
    rig.run([Divide(int(slots[0]), int(slots[1]), 4, trail.at(4)), Forget(slots[1:]), Touch(more)])
    assert rig.holds(chat, 0, 4, slots[:1])
    rig = rig.again()
    assert rig.recall(chat) == (4, 0)
    assert rig.store.catalogue.pages == 4


def test_other_salts_other_models_and_other_folders_find_nothing(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 32)
    rig.store.close()
    stranger = Chat(1, salt="another")
    other = Rig(tmp_path / "c", shape=layout(fingerprint=b"g" * 32))
    assert other.recall(chat) == (0, 0)
    other.save(chat, 0, 16)
    other.store.close()
    assert Rig(tmp_path / "d").recall(chat) == (0, 0)
    mine = Rig(tmp_path / "c")
    assert mine.recall(stranger) == (0, 0)
    assert mine.recall(chat) == (32, 0)


def test_another_layout_under_the_same_fingerprint_begins_anew(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 32)
    rig.store.close()
    rig = Rig(tmp_path / "c", shape=layout(128))
    assert rig.recall(chat) == (0, 0)
    assert segments_in(tmp_path / "c") == []


def test_neither_salt_nor_tokens_nor_key_are_in_any_file(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1, salt="a very secret salt")
    rig.save(chat, 0, 64)
    rig.save_image(chat, 64)
    key = rig.store.names_key
    rig.store.close()
    secrets = [b"a very secret salt", key]
    secrets += [chat.tokens[i : i + 2].tobytes() for i in range(62)]
    for path in (tmp_path / "c").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path


def test_a_growing_chat_writes_little_more_than_it_adds(tmp_path: Path) -> None:
    shape = Layout(32768, BLOCK, IMAGE_PAGES, 64, b"f" * 32)
    rig, chat = Rig(tmp_path / "c", shape=shape, budget=64 << 20), Chat(1, 400)
    end = 0
    for turn in range(10, 100, 10):
        rig.save(chat, end, turn * BLOCK)
        rig.save_image(chat, turn * BLOCK)
        end = turn * BLOCK
    stats = rig.store.stats()
    unique = (90 + 9 * IMAGE_PAGES) * 32768
    assert stats.bytes_demoted == unique
    assert unique <= stats.bytes_written <= 1.2 * unique
    assert stats.bytes_rewritten == 0


def test_usage_is_what_du_says(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c", shape=layout(4096), budget=8 << 20), Chat(1)
    for seed in range(20):
        rig.save(Chat(seed), 0, 64)
    rig.save(chat, 0, 32)
    blocks = sum(path.lstat().st_blocks for path in [tmp_path / "c", *(tmp_path / "c").rglob("*")])
    assert rig.store.usage == blocks * 512
    assert rig.store.stats().bytes <= rig.store.usage <= 8 << 20


def test_slots_are_four_fifths_of_the_budget(tmp_path: Path) -> None:
    assert Rig(tmp_path / "c", budget=10_000_000).store.slots == 125_000


@pytest.mark.parametrize("budget", [0, 1000, (1 << 20) - 1])
def test_a_budget_that_holds_next_to_nothing_is_refused(tmp_path: Path, budget: int) -> None:
    with pytest.raises(ConfigError, match="give at least"):
        DiskStore.open(tmp_path / "c", budget, layout())


def test_a_second_engine_is_told_who_has_the_folder(tmp_path: Path) -> None:
    import os

    rig = Rig(tmp_path / "c")
    with pytest.raises(ConfigError, match=rf"in use by another engine \(pid {os.getpid()}\)"):
        Rig(tmp_path / "c")
    rig.store.close()
    rig.store.close()
    Rig(tmp_path / "c").store.close()


def test_an_empty_move_is_carried_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    none = np.empty(0, np.int32)
    assert len(rig.read(none, 0)) == 0


def test_writing_goes_on_while_python_ends(tmp_path: Path) -> None:
    """What nobody closed is closed then, and thread pools take no more work."""
    program = """
import atexit, sys
from pathlib import Path
from tests.store.disk.rig import Chat, Rig, layout

rig = Rig(Path(sys.argv[1]), shape=layout(1 << 20), budget=1 << 28)

def end():
    print([rig.run([rig.saving(Chat(seed, 16), 0, 16, rig.take(4))])[0].ok for seed in range(4)])
    rig.store.close()

atexit.register(end)
"""
    run = [sys.executable, "-c", program, str(tmp_path / "c")]
    ended = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60, cwd=Path(__file__).parents[3])
    assert (ended.stdout, ended.stderr) == ("[True, True, True, True]\n", "")
