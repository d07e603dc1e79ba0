"""The host arena gives back what was written, or says that it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepwell.base.errors import ConfigError, StoreError
from stepwell.base.geometry import Ints
from stepwell.store.arena import Rows
from stepwell.store.host import POISON, HostArena, available_memory

PAGE = 64


def ints(*slots: int) -> Ints:
    return np.array(slots, np.int32)


def rows(count: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).integers(0, 256, (count, PAGE), dtype=np.uint8)


@pytest.mark.parametrize("slots", [(2, 3, 4), (7, 0, 3), (5,), ()])
@pytest.mark.parametrize("verify", [1.0, 0.5, 0.0])
def test_reads_back_what_was_written(slots: tuple[int, ...], verify: float) -> None:
    arena = HostArena(8, PAGE, verify=verify)
    data = rows(len(slots))
    arena.write(ints(*slots), data)
    assert (arena.read(ints(*slots)) == data).all()
    assert (arena.read(ints(*slots[::-1])) == data[::-1]).all()


def test_a_stray_write_is_found_out() -> None:
    arena = HostArena(8, PAGE)
    arena.write(ints(1, 2, 5), rows(3))
    arena.rows[2, 17] ^= 1
    with pytest.raises(StoreError, match=r"host slot 2 fails its checksum \(1 of 3 read\)"):
        arena.read(ints(1, 2, 5))
    assert (arena.read(ints(1)) == rows(3)[:1]).all()


def test_a_sample_finds_its_share_of_stray_writes_and_nothing_else() -> None:
    arena = HostArena(1000, PAGE, verify=0.2)
    every = np.arange(1000, dtype=np.int32)
    arena.write(every, rows(1000))
    arena.check(every)
    arena.rows[:, 0] ^= 1
    found = 0
    for slot in every:
        try:
            arena.check(ints(slot))
        except StoreError:
            found += 1
    assert 150 < found < 250
    with pytest.raises(StoreError, match=rf"fails its checksum \({found} of 1000 read\)"):
        arena.check(every)
    arena.write(every, arena.rows.copy())  # drawn anew
    arena.check(every)


def test_a_slot_that_was_never_written_cannot_be_read() -> None:
    arena = HostArena(8, PAGE)
    arena.write(ints(1), rows(1))
    with pytest.raises(StoreError, match="slot 2 was read before"):
        arena.read(ints(1, 2))


def test_poison_replaces_the_bytes_and_forgets_that_they_were_written() -> None:
    arena = HostArena(8, PAGE)
    arena.write(ints(1, 2), rows(2))
    arena.poison(ints(2))
    assert (arena.rows[2] == POISON).all()
    with pytest.raises(StoreError, match="slot 2"):
        arena.read(ints(1, 2))
    arena.write(ints(2), rows(1))
    arena.read(ints(1, 2))


def test_bytes_that_came_by_another_way_can_be_sealed_and_checked() -> None:
    arena = HostArena(8, PAGE)
    arena.rows[3:5] = rows(2)
    arena.seal(ints(3, 4))
    arena.check(ints(4, 3))
    arena.rows[4, 0] ^= 1
    with pytest.raises(StoreError, match="slot 4 fails"):
        arena.check(ints(3, 4))


def test_bad_slots_and_bad_shapes_are_refused_before_a_byte_moves() -> None:
    arena = HostArena(4, PAGE)
    with pytest.raises(StoreError, match="has 4 slots"):
        arena.write(ints(3, 4), rows(2))
    with pytest.raises(StoreError, match="has 4 slots"):
        arena.read(ints(-1))
    with pytest.raises(StoreError, match="cannot take bytes of shape"):
        arena.write(ints(0, 1), rows(1))


def test_the_budget_is_judged_before_anything_is_allocated() -> None:
    assert HostArena.within(10 * PAGE + 5, PAGE).slots == 10
    with pytest.raises(ConfigError, match=r"--host-memory 1024.0 TiB is more than the .* ask for less"):
        HostArena.within(2**50, PAGE)
    with pytest.raises(ConfigError, match="does not hold one page of 64 B"):
        HostArena.within(PAGE - 1, PAGE)
    with pytest.raises(ConfigError, match="ask for less"):
        HostArena.within(1000, PAGE, available=999)


def test_free_memory_is_the_lesser_of_the_system_and_its_control_group(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    assert available_memory(meminfo, group) == 2**63 - 1
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    group.mkdir()
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1024\n")
    assert available_memory(meminfo, group) == 50 * 1024
    (group / "memory.max").write_text("4096\n")
    (group / "memory.stat").write_text("anon 10\ninactive_file 24\n")
    assert available_memory(meminfo, group) == 4096 - 1024 + 24
