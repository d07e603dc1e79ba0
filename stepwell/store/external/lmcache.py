"""LMCache's storage manager (0.5.6) as a backend: KV and states as two groups of objects, in its memory and what lies below that.

    group 0   chunks of KV: all up to the boundary are needed        group 1   states: the one at the boundary is

A lookup is one prefetch of both groups: it brings them from below (Redis, files) into LMCache's memory and locks them there, so a load
copies memory. LMCache evicts as it likes; what it hands out is checked by `stepwell.store.external.objects`. Nothing of it is unpickled
on the way: objects are bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from stepwell.base.errors import ConfigError, StoreError
from stepwell.cache.external.ledger import What
from stepwell.cache.external.offer import Answer, Query
from stepwell.cache.moves import Name
from stepwell.store.arena import Rows
from stepwell.store.external import objects

_GROUPS: dict[What, int] = {"kv": 0, "image": 1}
_ALL, _LAST = -1, 1  # chunks of a group that a prefix of so many needs
_TTL = 300
"""Seconds after which LMCache lets go of a lock whose holder has gone."""
_LOOK = 0.05


class LMCacheBackend:
    """`space` names model, layout and all else that bytes depend on; `pages` are those of a chunk and of an image.

    `config` is LMCache's own, with what its variables and its file say. ConfigError, saying what to change, where it cannot be used.
    """

    def __init__(self, config: Any, space: str, pages: tuple[int, int], page_bytes: int) -> None:
        torch, api, manager = _modules()
        self._api = api
        self._space = space
        self._page_bytes = page_bytes
        layouts = (torch.Size([objects.size_of(count, page_bytes)]) for count in pages)
        self._layouts = [api.MemoryLayoutDesc([shape], [torch.uint8]) for shape in layouts]
        self._rank = api.ObjectKey.ComputeKVRank(world_size=1, global_rank=0, local_world_size=1, local_rank=0)
        self._nothing = api.ObjectKey(b"\0" * 16, space, self._rank, _GROUPS["image"])
        self._leases: dict[int, list[Any]] = {}
        self._doomed: set[Any] = set()
        self._lock = threading.Lock()
        self._manager = manager.StorageManager(settings(config))

    def find(self, query: Query, waited_for: Callable[[], bool]) -> Answer:
        """See `Backend.find`."""
        at = {name.end: self._key("image", name) for name in query.images}
        reach = query.start
        if query.kv:
            kv = [self._key("kv", name) for name in query.kv]
            images = [at.get(name.end, self._nothing) for name in query.kv]
            kv_hits, image_hits, reach = self._prefetch(query, [("kv", kv), ("image", images)], waited_for)
            deepest = max(image_hits, default=-1)
            whole = kv_hits >= set(range(deepest + 1))
            locked = [kv[i] for i in sorted(kv_hits)] + [images[i] for i in sorted(image_hits)]
            if deepest >= 0 and whole:
                return self._lease(query, locked, reach, query.kv[deepest].end)
            self._unlock(locked)
        within = [end for end in at if end <= query.start]
        if within:
            keys = [at[end] for end in within]
            hits, _, _ = self._prefetch(query, [("image", keys)], waited_for)
            if hits:
                return self._lease(query, [keys[i] for i in sorted(hits)], reach, within[max(hits)])
        return Answer(query.number, reach, 0)

    def get(self, what: What, name: Name) -> Rows:
        """See `Backend.get`; a view into LMCache's memory."""
        _, found = self._manager.unsafe_read([self._key(what, name)])
        if not found:
            raise StoreError(f"{objects.describe(what, name)}: LMCache has it no more")
        return np.asarray(found[0].get_tensor(0).numpy())

    def put(self, what: What, name: Name, rows: Rows) -> None:
        """See `Backend.put`. What lies below LMCache's memory gets it later."""
        key = self._key(what, name)
        found = self._manager.reserve_write([key], self._layouts[_GROUPS[what]]).get(key)
        if found is None:
            if self._has(what, key):
                return
            raise StoreError(f"{objects.describe(what, name)}: LMCache has no room, or is writing it already")
        try:
            objects.write(found.get_tensor(0).numpy(), what, name, rows)
        finally:
            self._manager.finish_write([key])

    def release(self, number: int) -> None:
        """See `Backend.release`."""
        with self._lock:
            keys = self._leases.pop(number, [])
        if keys:
            self._unlock(keys)

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """See `Backend.forget`. What a lease holds goes with the lease."""
        with self._lock:
            self._doomed.update(self._key(what, name) for name in names)
        self._drop_doomed()

    def close(self) -> None:
        """See `Backend.close`."""
        self._manager.close()

    # ---- parts --------------------------------------------------------------------------------------------

    def _key(self, what: What, name: Name) -> Any:
        """Independent of Python's hashes: digests say what it is, and the salt is named by its own."""
        return self._api.ObjectKey(name.digest, self._space, self._rank, _GROUPS[what], name.root.hex())

    def _prefetch(
        self, query: Query, rows: list[tuple[What, list[Any]]], waited_for: Callable[[], bool]
    ) -> tuple[set[int], set[int], int]:
        """Indices that are locked now, of the first row and of the second; and how far the first is there without a gap, in tokens."""
        groups = [
            self._api.GroupedObjectKeys(keys, group, self._layouts[group], _ALL if what == "kv" else _LAST)
            for what, keys in rows
            for group in (_GROUPS[what],)
        ]
        task = self._manager.submit_prefetch_task(self._api.PrefetchTaskSpec(key_groups=groups))
        while not self._manager.wait_prefetch_status(task, _LOOK):
            if not waited_for():
                raise StoreError(f"query {query.number} is not waited for any more")
        result = self._manager.query_prefetch_status(task)
        hits = [{i for i in range(len(rows[0][1])) if row.test(i)} for row in result.hit_cells] if result else []
        hits += [set() for _ in range(2 - len(hits))]
        found = result.found_cells if result else None
        first = found[0] if found else result.hit_cells[0] if result and result.hit_cells else None
        count = 0
        while first is not None and count < len(query.kv) and first.test(count):
            count += 1
        return hits[0], hits[1], query.kv[count - 1].end if count else query.start

    def _has(self, what: What, key: Any) -> bool:
        """Whether LMCache's memory holds an object."""
        group = self._api.GroupedObjectKeys([key], _GROUPS[what], self._layouts[_GROUPS[what]], _ALL)
        mode = self._api.PrefetchLockMode.NO_LOCK
        spec = self._api.PrefetchTaskSpec(key_groups=[group], lock_mode=mode)
        result = self._manager.query_prefetch_status(self._manager.submit_prefetch_task(spec, skip_l2=True))
        return result is not None and any(row.test(0) for row in result.hit_cells)

    def _lease(self, query: Query, keys: list[Any], reach: int, boundary: int) -> Answer:
        with self._lock:
            self._leases[query.number] = keys
        return Answer(query.number, max(reach, boundary if query.kv else query.start), boundary)

    def _unlock(self, keys: list[Any]) -> None:
        self._manager.finish_read_prefetched(keys)
        self._drop_doomed()

    def _drop_doomed(self) -> None:
        with self._lock:
            held = {key for keys in self._leases.values() for key in keys}
            free = [key for key in self._doomed if key not in held]
            self._doomed.difference_update(free)
        if free:
            self._manager.delete_l1_keys(free)
            for _, below in self._manager.l2_adapters():
                below.delete(free)


def read_config() -> Any:
    """LMCache's settings, as its file (LMCACHE_CONFIG_FILE) and its variables (LMCACHE_*) have them. ConfigError without LMCache."""
    try:
        from lmcache.v1.config import load_engine_config_with_overrides
    except ImportError as error:
        raise ConfigError(f"--kv-offload lmcache needs LMCache ({error}): pip install 'stepwell[lmcache]'") from error
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
        url = urlsplit(config.remote_url)
        if url.scheme not in ("redis", "valkey", "resp") or not url.hostname:
            raise ConfigError(f"LMCACHE_REMOTE_URL {config.remote_url!r} is not supported: give redis://HOST:PORT")
        yield RESPL2AdapterConfig(url.hostname, url.port or 6379, 2, url.username or "", url.password or "")


def _modules() -> tuple[Any, Any, Any]:
    try:
        import torch
        from lmcache.v1.distributed import api, storage_manager
    except ImportError as error:
        raise ConfigError(f"--kv-offload lmcache needs LMCache ({error}): pip install 'stepwell[lmcache]'") from error
    return torch, api, storage_manager
