"""LMCache's storage manager (0.5.6) as a backend: KV and states as groups of objects, in its memory and what lies below that.

    group 0     chunks of KV: all up to the boundary are needed
    group 1, …  first, second, … pieces of states: those of the one at the boundary are

All objects are as large as a chunk of KV, for LMCache's client of Redis reads and writes no others in one go. So images are cut.

A lookup is one prefetch of both groups: it brings them from below (Redis, files) into LMCache's memory and locks them there, so a load
copies memory. LMCache evicts as it likes; what it hands out is checked by `stepwell.store.external.objects`. Nothing of it is unpickled
on the way: objects are bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from stepwell.base.errors import ConfigError, StoreError
from stepwell.base.units import ceil_div
from stepwell.cache.disk.names import DIGEST
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Name
from stepwell.store.arena import Rows
from stepwell.store.external import objects

KV, IMAGE = 0, 1
"""Groups of objects: chunks of KV, and the first pieces of images; the others' follow."""
_ALL, _LAST = -1, 1  # chunks of a group that a prefix of so many needs
_TTL = 300
"""Seconds after which LMCache lets go of a lock whose holder has gone."""
_LOOK = 0.05
_FETCH = 30.0
"""Seconds that bringing one object into memory may take, where that was not leased."""
_MOST_ABANDONED = 64
"""Lookups that were given up and have not ended: where there are so many, LMCache answers nobody, and is asked no more."""


class LMCacheBackend:
    """`space` names model, layout and all else that bytes depend on; `pages` are those of a chunk and of an image. Each of several ranks
    has one of these, and stores its part of every object under the same name, with its number and theirs in the key.

    `config` is LMCache's own, with what its variables and its file say. ConfigError, saying what to change, where it cannot be used.
    """

    def __init__(
        self, config: Any, space: str, pages: tuple[int, int], page_bytes: int, rank: int = 0, ranks: int = 1
    ) -> None:
        torch, api, manager = _modules()
        self._api = api
        self._space = space
        self._sizes: dict[What, int] = {
            "kv": objects.size_of(pages[0], page_bytes),
            "image": objects.size_of(pages[1], page_bytes),
        }
        self._piece = self._sizes["kv"]
        self._layout = api.MemoryLayoutDesc([torch.Size([self._piece])], [torch.uint8])
        self._number = rank
        self._rank = api.ObjectKey.ComputeKVRank(
            world_size=ranks, global_rank=rank, local_world_size=ranks, local_rank=rank
        )
        self._leases: dict[int, list[Any]] = {}
        self._doomed: set[Any] = set()
        self._abandoned: list[tuple[Any, list[list[Any]]]] = []  # tasks, and the rows of keys that each may lock
        self._lock = threading.Lock()
        self._manager = manager.StorageManager(settings(config))

    def find(self, query: Query, waited_for: Callable[[], bool]) -> QueryAnswer:
        """See `Backend.find`."""
        self._collect()
        if len(self._abandoned) >= _MOST_ABANDONED:
            raise StoreError(f"{len(self._abandoned)} lookups of LMCache have not ended")
        reach = query.start
        if query.kv:
            at = {name.end: name for name in query.images}
            images = [at.get(name.end) for name in query.kv]
            rows = [[self._key(KV, name) for name in query.kv], *self._image_rows(images)]
            hits = self._prefetch(rows, waited_for)
            count = next((i for i in range(len(query.kv)) if i not in hits[0]), len(query.kv))
            reach = query.kv[count - 1].end if count else query.start
            whole = [i for i in set.intersection(*hits) if i < count]
            if whole:
                return self._lease(query, rows, hits, reach, query.kv[max(whole)].end)
            self._unlock(_locked(rows, hits))
        within = [name for name in query.images if name.end <= query.start]
        if within:
            rows = self._image_rows(within)
            hits = self._prefetch(rows, waited_for)
            if whole := list(set.intersection(*hits)):
                return self._lease(query, rows, hits, reach, within[max(whole)].end)
            self._unlock(_locked(rows, hits))
        return QueryAnswer(query.number, reach, 0)

    def get(self, what: What, name: Name) -> Rows:
        """See `Backend.get`; of one piece that is leased here, a view into LMCache's memory. What is not leased, since another rank
        alone was asked for it, may be gone at any moment: it is brought into memory, locked, and copied."""
        keys = self._keys(what, name)
        whole = self._read(keys) if self._leased(keys) else self._fetch(keys)
        if whole is None:
            raise StoreError(f"{objects.describe(what, name, self._number)}: LMCache has it no more")
        return whole[: self._sizes[what]]

    def _leased(self, keys: list[Any]) -> bool:
        """Whether queries that were answered here hold all of these."""
        with self._lock:
            held = {key for leased in self._leases.values() for key in leased}
        return held.issuperset(keys)

    def _fetch(self, keys: list[Any]) -> Rows | None:
        """A copy of these, made while they are locked; None where one is missing."""
        rows = [[key] for key in keys]
        locked = _locked(rows, self._prefetch(rows, _within(_FETCH)))
        try:
            found = self._read(keys)
            return None if found is None else found.copy()
        finally:
            self._unlock(locked)

    def put(self, what: What, name: Name, rows: Rows) -> None:
        """See `Backend.put`. What lies below LMCache's memory gets it later. Where there is room for some pieces only, these are right and
        stay; no piece is shown before it has been written."""
        keys = [key for key in self._keys(what, name) if not self._has(key)]
        if not keys:
            return
        made = np.zeros(len(self._keys(what, name)) * self._piece, np.uint8)
        objects.write(made[: self._sizes[what]], what, name, rows)
        found, written = self._manager.reserve_write(keys, self._layout), []
        try:
            for key, piece in zip(self._keys(what, name), made.reshape(-1, self._piece), strict=True):
                if key in found:
                    found[key].get_tensor(0).numpy()[:] = piece
                    written.append(key)
        finally:
            self._manager.finish_write(written)
        if len(found) < len(keys):
            raise StoreError(
                f"{objects.describe(what, name, self._number)}: LMCache has no room, or is writing it already"
            )

    def release(self, number: int) -> None:
        """See `Backend.release`."""
        with self._lock:
            keys = self._leases.pop(number, [])
        self._unlock(keys)
        self._collect()

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """See `Backend.forget`. What a lease holds, or a lookup that was given up may hold, goes with that."""
        self._collect()
        with self._lock:
            self._doomed.update(key for name in names for key in self._keys(what, name))
        self._drop_doomed()

    def close(self) -> None:
        """See `Backend.close`."""
        self._manager.close()

    # ---- parts --------------------------------------------------------------------------------------------

    def _key(self, group: int, name: Name) -> Any:
        """Independent of Python's hashes: digests say what it is, and the salt is named by its own."""
        return self._api.ObjectKey(name.digest, self._space, self._rank, group, name.root.hex())

    def _keys(self, what: What, name: Name) -> list[Any]:
        """Of the pieces of one object, in order."""
        if what == "kv":
            return [self._key(KV, name)]
        return [self._key(IMAGE + i, name) for i in range(ceil_div(self._sizes["image"], self._piece))]

    def _image_rows(self, images: Sequence[Name | None]) -> list[list[Any]]:
        """A row for each piece; a key that nothing is stored under where no state is wanted."""
        nothing = Name(b"", b"", b"\0" * DIGEST, 0, 0)
        columns = [self._keys("image", name or nothing) for name in images]
        return [list(row) for row in zip(*columns, strict=True)]

    def _read(self, keys: list[Any]) -> Rows | None:
        """What memory holds under all of these, one after the other; None where it lacks one."""
        _, found = self._manager.unsafe_read(keys)
        if len(found) < len(keys):
            return None
        pieces = [np.asarray(one.get_tensor(0).numpy()) for one in found]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _prefetch(self, rows: list[list[Any]], waited_for: Callable[[], bool]) -> list[set[int]]:
        """By row, the indices that are locked now. StoreError once nobody waits for that any more."""
        groups = [self._group(row) for row in rows]
        task = self._manager.submit_prefetch_task(self._api.PrefetchTaskSpec(key_groups=groups))
        while not self._manager.wait_prefetch_status(task, _LOOK):
            if not waited_for():
                with self._lock:
                    self._abandoned.append((task, rows))
                raise StoreError("LMCache has not answered in time")
        return self._hits(task, rows)

    def _collect(self) -> None:
        """Take the results of abandoned lookups that have ended, and let go of what these have locked."""
        with self._lock:
            ended = [one for one in self._abandoned if self._manager.wait_prefetch_status(one[0], 0.0)]
            self._abandoned = [one for one in self._abandoned if one not in ended]
        for task, rows in ended:
            self._unlock(_locked(rows, self._hits(task, rows)))

    def _hits(self, task: Any, rows: list[list[Any]]) -> list[set[int]]:
        """What a lookup that has ended has locked; it says so once."""
        result = self._manager.query_prefetch_status(task)
        if result is None or not result.hit_cells:
            return [set() for _ in rows]
        return [{i for i in range(len(keys)) if row.test(i)} for keys, row in zip(rows, result.hit_cells, strict=True)]

    def _group(self, keys: list[Any]) -> Any:
        group = keys[0].object_group_id
        return self._api.GroupedObjectKeys(keys, group, self._layout, _ALL if group == KV else _LAST)

    def _has(self, key: Any) -> bool:
        """Whether LMCache's memory holds an object."""
        spec = self._api.PrefetchTaskSpec(key_groups=[self._group([key])], lock_mode=self._api.PrefetchLockMode.NO_LOCK)
        result = self._manager.query_prefetch_status(self._manager.submit_prefetch_task(spec, skip_l2=True))
        return result is not None and any(row.test(0) for row in result.hit_cells)

    def _lease(
        self, query: Query, rows: list[list[Any]], hits: list[set[int]], reach: int, boundary: int
    ) -> QueryAnswer:
        with self._lock:
            self._leases[query.number] = _locked(rows, hits)
        return QueryAnswer(query.number, reach, boundary)

    def _unlock(self, keys: list[Any]) -> None:
        if keys:
            self._manager.finish_read_prefetched(keys)
        self._drop_doomed()

    def _drop_doomed(self) -> None:
        if not self._doomed:
            return
        with self._lock:
            held = {key for keys in self._leases.values() for key in keys}
            held.update(key for _, rows in self._abandoned for row in rows for key in row)
            free = [key for key in self._doomed if key not in held]
            self._doomed.difference_update(free)
        if free:
            self._manager.delete_l1_keys(free)
            for _, below in self._manager.l2_adapters():
                below.delete(free)


def _within(seconds: float) -> Callable[[], bool]:
    """True for so many seconds."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _locked(rows: list[list[Any]], hits: list[set[int]]) -> list[Any]:
    return [row[i] for row, found in zip(rows, hits, strict=True) for i in sorted(found)]


def read_config() -> Any:
    """LMCache's settings, as its file (LMCACHE_CONFIG_FILE) and its variables (LMCACHE_*) have them. ConfigError without LMCache."""
    try:
        from lmcache.v1.config import load_engine_config_with_overrides
    except ImportError as error:
        raise ConfigError(f"--kv-offload lmcache needs LMCache ({error}): pip install 'stepwell[lmcache]'") from error
    # it logs all settings, the server's password included
    logging.getLogger("lmcache.v1.config").setLevel(logging.WARNING)
    return load_engine_config_with_overrides()


def settings(config: Any) -> Any:
    """LMCache's memory, and below it files or a server, as `config` says. ConfigError where it names something else."""
    from lmcache.v1.distributed.config import DRAML1ManagerConfig, EvictionConfig, StorageManagerConfig
    from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig

    policy = EvictionConfig("LRU")
    memory = {"type": "DRAM", "tag": "_default", "size_gb": float(config.max_local_cpu_size), "read_ttl_seconds": _TTL}
    return StorageManagerConfig(
        l1_manager_config=DRAML1ManagerConfig.from_dict(memory, policy),
        eviction_config=policy,
        l2_adapter_config=L2AdaptersConfig(list(_below(config))),
    )


def _below(config: Any) -> Iterable[Any]:
    from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
    from lmcache.v1.distributed.l2_adapters.resp_l2_adapter import RESPL2AdapterConfig

    if config.local_disk:
        yield FSL2AdapterConfig(str(config.local_disk))
    if config.remote_url:
        host, port, user, password = _server(str(config.remote_url))
        yield RESPL2AdapterConfig(host, port, 2, user, password)


def _server(address: str) -> tuple[str, int, str, str]:
    """Host, port, user and password of a server. ConfigError, which names neither of the latter, where it cannot be used."""
    try:
        url = urlsplit(address)
        host, port = url.hostname, url.port
    except ValueError:  # its words may hold the password
        raise ConfigError("LMCACHE_REMOTE_URL is not an address: give redis://HOST:PORT") from None
    if url.scheme not in ("redis", "valkey", "resp") or not host:
        raise ConfigError(f"LMCACHE_REMOTE_URL {url.scheme}://{host or ''} is not supported: give redis://HOST:PORT")
    if url.path not in ("", "/", "/0") or url.query or url.fragment:
        raise ConfigError(f"LMCACHE_REMOTE_URL {url.scheme}://{host} may name database 0 alone: give redis://HOST:PORT")
    return host, port or 6379, unquote(url.username or ""), unquote(url.password or "")


def _modules() -> tuple[Any, Any, Any]:
    try:
        import torch
        from lmcache.v1.distributed import api, storage_manager
    except ImportError as error:
        raise ConfigError(f"--kv-offload lmcache needs LMCache ({error}): pip install 'stepwell[lmcache]'") from error
    return torch, api, storage_manager
