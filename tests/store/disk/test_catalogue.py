"""What an earlier process left: found by its parent, adopted, trimmed by age; and never what it is not."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Divide, Forget, Touch
from stepwell.store.disk.files import no_point
from tests.store.disk.rig import Chat, Rig, layout, manifest_in


def starts(rig: Rig, chats: list[Chat]) -> list[bool]:
    return [rig.recall(chat)[0] > 0 for chat in chats]


def test_the_least_recently_used_are_trimmed_first(tmp_path: Path) -> None:
    rig, chats = Rig(tmp_path / "c"), [Chat(seed) for seed in range(6)]
    slots = [rig.save(chat, 0, 16) for chat in chats]
    rig.run([Touch(slots[0]), Touch(slots[3])])
    rig = rig.again()
    assert rig.store.catalogue.pages == 24
    assert rig.store.catalogue.trim_dormant(7) == 8
    assert rig.store.catalogue.pages == 16
    rig.run([])
    rig = rig.again()
    assert starts(rig, chats) == [True, False, False, True, True, True]


def test_trimming_stops_when_nothing_is_left(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 16)
    rig = rig.again()
    mine = rig.save(Chat(2), 0, 16)
    assert rig.store.catalogue.trim_dormant(1000) == 4
    assert rig.store.catalogue.trim_dormant(1000) == 0
    rig.run([])
    assert rig.store.catalogue.pages == 0
    assert rig.holds(Chat(2), 0, 16, mine)


def test_one_of_many_is_found_by_its_digest(tmp_path: Path) -> None:
    rig, chats = Rig(tmp_path / "c", budget=4 << 20), [Chat(seed) for seed in range(300)]
    rig.run([task for chat in chats for task in [rig.saving(chat, 0, 16, rig.take(4))]])
    rig = rig.again()
    root = rig.trail(chats[0]).root
    assert len(rig.under(root)) == 300  # more than one batch of rows
    wanted = rig.trail(chats[7]).at(16)
    [found] = rig.store.catalogue.under(root, [wanted, b"x" * 16])
    assert found.name.digest == wanted
    rig.adopt(found)
    assert list(rig.store.catalogue.under(root, [wanted])) == []
    assert len(rig.under(root)) == 299


def test_all_of_one_root_can_be_expelled(tmp_path: Path) -> None:
    rig, chats = Rig(tmp_path / "c", budget=4 << 20), [Chat(seed) for seed in range(300)]
    other = Chat(1, salt="other")
    rig.run([task for chat in (*chats, other) for task in [rig.saving(chat, 0, 16, rig.take(4))]])
    rig = rig.again()
    before = rig.store.catalogue.pages
    assert rig.store.catalogue.expel(rig.trail(chats[0]).root) == 300 * 4
    assert rig.store.catalogue.pages == before - 300 * 4
    assert not rig.under(rig.trail(chats[0]).root) and len(rig.under(rig.trail(other).root)) == 1
    rig.run([])
    rig = rig.again()
    assert rig.store.catalogue.pages == 4, "for good"


def test_what_this_process_wrote_is_not_dormant(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 16)
    assert rig.store.catalogue.pages == 0
    assert list(rig.under(rig.trail(Chat(1)).root)) == []


def test_a_discarded_record_is_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 16)
    rig = rig.again()
    [found] = rig.under(rig.trail(Chat(1)).root)
    rig.store.catalogue.discard(found)
    rig.store.catalogue.discard(found)
    assert rig.store.catalogue.pages == 0
    rig.run([])
    assert rig.again().recall(Chat(1)) == (0, 0)


@pytest.mark.parametrize(
    "change",
    [
        "offset = offset + 8",
        "segment = segment + 1",
        "pages = 1000000",
        "pages = -1",
        "first = 2",
        "stop = stop + 4",
        "kind = 2",
        "kind = 77",
        "kind = 'x'",
        "seal = seal + 1",
        "digest = zeroblob(16)",
        "root = x'00'",
        "used = NULL",
        "start = 9e300",
    ],
)
def test_a_row_changed_by_anyone_is_quarantined(tmp_path: Path, change: str) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 16)
    rig.store.close()
    connection = sqlite3.connect(manifest_in(tmp_path / "c"))
    connection.execute(f"UPDATE record SET {change}")
    connection.commit()
    connection.close()
    rig = Rig(tmp_path / "c")
    assert list(rig.under(rig.trail(chat).root)) == []
    assert rig.store.stats().quarantined == 1
    assert list(rig.under(rig.trail(chat).root)) == []
    assert rig.store.stats().quarantined == 1
    rig.save(chat, 0, 16)
    assert rig.again().recall(chat) == (16, 0)


def test_an_index_that_cannot_be_read_says_that_there_is_nothing(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    rig.save(chat, 0, 16)
    rig = rig.again()
    [found] = rig.under(rig.trail(chat).root)
    rig.store._owned.view.close()
    assert list(rig.under(rig.trail(chat).root)) == []
    assert rig.store.catalogue.trim_dormant(4) == 0
    slots = rig.take(4)
    rig.store.catalogue.adopt(found, slots)
    with pytest.raises(Exception, match="holds nothing"):
        rig.read(slots, 16)
    assert rig.store.stats().problems


def test_a_smaller_budget_leaves_no_more_than_there_are_slots(tmp_path: Path) -> None:
    shape = layout(4096, chunk=64)
    rig, chats = Rig(tmp_path / "c", shape=shape, budget=4 << 20), [Chat(seed) for seed in range(20)]
    for chat in chats:
        rig.save(chat, 0, 64)
    rig.store.close()
    rig = Rig(tmp_path / "c", shape=shape, budget=1 << 20)
    assert rig.store.catalogue.pages == rig.store.slots // 16 * 16 < 20 * 16
    rig.run([])
    assert rig.store.stats().segments < 7  # room for what comes is made at once
    assert starts(rig, chats) == [False] * 8 + [True] * 12  # and what is left can all be had at the same time
    assert rig.store.catalogue.pages == 0


def test_slots_given_back_may_be_taken_for_another_part_of_the_same_record(tmp_path: Path) -> None:
    """The order to forget them comes after the adoption, and concerns what they held before."""
    rig, chat = Rig(tmp_path / "c"), Chat(1)
    slots = rig.save(chat, 0, 16)
    rig.run([Divide(int(slots[1]), int(slots[2]), 8, rig.trail(chat).at(8))])
    rig = rig.again()
    [upper], [lower] = rig.under(rig.trail(chat).root), rig.under(rig.trail(chat).at(8))
    slots = rig.adopt(upper)
    rig.run([])
    rig.store.catalogue.adopt(lower, slots)
    rig.run([Forget(slots)])
    assert rig.holds(chat, 8, 16, slots)


@pytest.mark.parametrize("how", ["broken", "removed"])
def test_slots_of_an_adoption_that_fails_do_not_read_as_what_they_held_before(tmp_path: Path, how: str) -> None:
    """The order to forget that comes later, and the readers do not wait for it."""
    rig, old, new = Rig(tmp_path / "c"), Chat(1), Chat(2)
    rig.save(old, 0, 16)
    rig = rig.again()
    slots = rig.save(new, 0, 16)
    [found] = rig.under(rig.trail(old).root)
    if how == "broken":
        rig.store._owned.view.close()
    else:
        rig.store._tools.ledger.remove(found.record, None)
        rig.store._tools.ledger.commit(no_point)
    rig.store.catalogue.adopt(found, slots)
    with pytest.raises(StoreError, match="holds nothing"):
        rig.read(slots, 16)


def test_a_hold_waits_for_no_compaction_and_keeps_the_next_one_off(tmp_path: Path) -> None:
    """The thread of a compaction has the lock while it commits; the engine's own may look up and adopt while it holds."""
    rig = Rig(tmp_path)
    catalogue, lock = rig.store.catalogue, rig.store.catalogue._places.lock
    with ThreadPoolExecutor(1) as compaction:
        compaction.submit(lock.acquire).result()
        assert not catalogue.hold()
        compaction.submit(lock.release).result()
        assert catalogue.hold() and not compaction.submit(lock.acquire, blocking=False).result()
        assert list(catalogue.under(bytes(16), [bytes(16)])) == []
        catalogue.let_go()
        assert compaction.submit(lock.acquire, blocking=False).result()
        compaction.submit(lock.release).result()
