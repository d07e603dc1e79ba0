"""What LMCache is told, by a manager in its place: tests with LMCache itself are in tests/engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepwell.base.errors import ConfigError, StoreError
from stepwell.cache.disk.names import Names
from stepwell.cache.external.query import Query
from stepwell.store.external import lmcache, objects
from stepwell.store.external.lmcache import LMCacheBackend

PAGE = 64
TRAIL = Names(b"k" * 32, 16).trail("", np.arange(64, dtype=np.int32))
(CHUNK,) = TRAIL.records(0, 16)
IMAGE = TRAIL.image(16)


class Row(set[int]):
    def test(self, i: int) -> bool:
        return i in self


class Memory:
    """A piece of LMCache's memory, with bytes of somebody else in it."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 0xAA, np.uint8)

    def get_tensor(self, _: int) -> SimpleNamespace:
        return SimpleNamespace(numpy=lambda: self.bytes)


class Manager:
    """Has room for `room` pieces; its lookups end once `answers`."""

    def __init__(self, room: int = 9) -> None:
        self.room, self.answers, self.tasks = room, True, 0
        self.kept: dict[Any, Memory] = {}
        self.shown: set[Any] = set()
        self.locked: list[Any] = []
        self.deleted: list[Any] = []
        self.results: dict[int, Any] = {}

    def submit_prefetch_task(self, spec: Any, skip_l2: bool = False) -> int:
        self.tasks += 1
        cells = [Row(i for i, key in enumerate(group.keys) if key in self.shown) for group in spec.key_groups]
        self.results[self.tasks] = SimpleNamespace(hit_cells=cells)
        if not skip_l2:
            self.locked += [group.keys[i] for group, row in zip(spec.key_groups, cells, strict=True) for i in row]
        return self.tasks

    def wait_prefetch_status(self, task: int, timeout: float) -> bool:
        return self.answers

    def query_prefetch_status(self, task: int) -> Any:
        return self.results.pop(task, None)

    def finish_read_prefetched(self, keys: list[Any]) -> None:
        for key in keys:
            self.locked.remove(key)

    def unsafe_read(self, keys: list[Any]) -> tuple[list[Any], list[Memory]]:
        found = [key for key in keys if key in self.locked]  # LMCache shows what is locked alone
        return found, [self.kept[key] for key in found]

    def reserve_write(self, keys: list[Any], layout: Any) -> dict[Any, Memory]:
        found = {key: Memory(layout) for key in keys[: self.room]}
        self.kept.update(found)
        return found

    def finish_write(self, keys: list[Any]) -> None:
        self.shown.update(keys)

    def delete_l1_keys(self, keys: list[Any]) -> None:
        assert not set(keys) & set(self.locked), "LMCache refuses to delete what is locked"
        self.shown.difference_update(keys)
        self.deleted += keys

    def l2_adapters(self) -> list[Any]:
        return []


def make(monkeypatch: pytest.MonkeyPatch, manager: Manager, rank: int = 0) -> LMCacheBackend:
    class Key(tuple[Any, ...]):
        object_group_id = property(lambda self: self[3])

        @staticmethod
        def ComputeKVRank(world_size: int, global_rank: int, **_: int) -> int:
            return 10 * world_size + global_rank

    class Make:
        ObjectKey = Key
        PrefetchLockMode = SimpleNamespace(NO_LOCK=0)
        MemoryLayoutDesc = staticmethod(lambda sizes, types: sizes[0])
        PrefetchTaskSpec = staticmethod(lambda key_groups, lock_mode=1: SimpleNamespace(key_groups=key_groups))
        GroupedObjectKeys = staticmethod(lambda keys, *_: SimpleNamespace(keys=keys))

    Key.__new__ = lambda cls, *parts: tuple.__new__(cls, parts)  # type: ignore[assignment,method-assign]
    torch = SimpleNamespace(Size=lambda sizes: sizes[0], uint8="uint8")
    monkeypatch.setattr(
        lmcache, "_modules", lambda: (torch, Make, SimpleNamespace(StorageManager=lambda settings: manager))
    )
    monkeypatch.setattr(lmcache, "settings", lambda config: config)
    return LMCacheBackend(None, "space", (1, 2), PAGE, rank, 2)  # an image is cut into two pieces


def test_no_piece_is_shown_that_has_not_been_written(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(room=1)
    backend = make(monkeypatch, manager)
    rows = np.arange(2 * PAGE, dtype=np.uint8).reshape(2, PAGE)
    with pytest.raises(StoreError, match="no room"):
        backend.put("image", IMAGE, rows)
    whole = np.empty(objects.size_of(2, PAGE), np.uint8)
    objects.write(whole, "image", IMAGE, rows)
    (shown,) = manager.shown
    assert (manager.kept[shown].bytes == whole[: objects.size_of(1, PAGE)]).all()
    backend.put("image", IMAGE, rows)
    assert len(manager.shown) == 2


def test_pieces_that_could_not_be_made_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    backend = make(monkeypatch, manager)
    with pytest.raises(ValueError):
        backend.put("kv", CHUNK, np.zeros((3, PAGE), np.uint8))
    assert not manager.shown


def test_what_this_rank_was_not_asked_for_is_brought_into_memory_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    backend = make(monkeypatch, manager)
    rows = np.arange(2 * PAGE, dtype=np.uint8).reshape(2, PAGE)
    backend.put("image", IMAGE, rows)
    found = backend.get("image", IMAGE)
    assert not manager.locked
    for memory in manager.kept.values():
        memory.bytes[:] = 0  # nothing holds it any more
    assert (objects.read(found, "image", IMAGE, 2, PAGE) == rows).all()


def test_what_is_not_leased_is_copied_though_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another query's lock shows it as if it were ours; once that is gone, LMCache may write over it."""
    manager = Manager()
    backend = make(monkeypatch, manager)
    rows = np.arange(PAGE, dtype=np.uint8).reshape(1, PAGE)
    backend.put("kv", CHUNK, rows)
    manager.locked += list(manager.kept)
    found = backend.get("kv", CHUNK)
    for memory in manager.kept.values():
        memory.bytes[:] = 0
    assert (objects.read(found, "kv", CHUNK, 1, PAGE) == rows).all()


def test_an_object_of_which_a_piece_is_gone_is_missing_and_names_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    backend = make(monkeypatch, manager, rank=1)
    backend.put("image", IMAGE, np.zeros((2, PAGE), np.uint8))
    manager.shown.pop()
    with pytest.raises(StoreError, match="state at token 16, rank 1: LMCache has it no more"):
        backend.get("image", IMAGE)
    assert not manager.locked


def test_ranks_keep_their_parts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    make(monkeypatch, manager, rank=0).put("kv", CHUNK, np.zeros((1, PAGE), np.uint8))
    assert make(monkeypatch, manager, rank=1).find(Query(1, 0, (CHUNK,), ()), lambda: True).reach == 0
    make(monkeypatch, manager, rank=1).put("kv", CHUNK, np.zeros((1, PAGE), np.uint8))
    assert len(manager.shown) == 2


def test_an_abandoned_lookup_is_collected_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    backend = make(monkeypatch, manager)
    backend.put("kv", CHUNK, np.zeros((1, PAGE), np.uint8))
    backend.put("image", IMAGE, np.zeros((2, PAGE), np.uint8))
    manager.results.clear()
    manager.answers = False
    with pytest.raises(StoreError, match="not answered in time"):
        backend.find(Query(1, 0, (CHUNK,), (IMAGE,)), lambda: False)
    backend.forget("kv", [CHUNK])
    assert len(manager.locked) == 3 and not manager.deleted  # nothing that it may have locked
    manager.answers = True
    backend.release(1)
    assert not manager.locked and not manager.results
    assert len(manager.deleted) == 1


def test_a_store_that_answers_nobody_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager()
    backend = make(monkeypatch, manager)
    manager.answers = False
    for number in range(200):
        with pytest.raises(StoreError):
            backend.find(Query(number, 0, (CHUNK,), ()), lambda: False)
    assert manager.tasks < 100
    manager.answers = True
    assert backend.find(Query(200, 0, (CHUNK,), ()), lambda: True).boundary == 0


@pytest.mark.parametrize(
    "address",
    [
        "rediss://u:s3cret@h:6379",
        "redis://:s3cret@h:6379/3",
        "redis://u:s3cret@h:abc",
        "redis://u:s3cret@h:99999",
        "redis://:s3cret@",
    ],
)
def test_addresses_that_cannot_be_used_are_refused_without_their_password(address: str) -> None:
    with pytest.raises(ConfigError, match="redis://HOST:PORT") as caught:
        lmcache._server(address)
    assert "s3cret" not in str(caught.value) and caught.value.__cause__ is None


def test_an_address_is_read_as_it_is_written() -> None:
    assert lmcache._server("redis://us%40er:p%2Fss@cache.internal/0") == ("cache.internal", 6379, "us@er", "p/ss")
    assert lmcache._server("valkey://cache:7000") == ("cache", 7000, "", "")
