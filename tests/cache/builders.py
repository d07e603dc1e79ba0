"""Directories with known content, in a few words.

shelf = directory(pages=32, host=32)
prompt = numbers(40)
keep(shelf, prompt, 32, rungs=(20, 32))      computed: KV of [0, 32) and rungs at 20 and 32, on the device
copy_down(shelf)                             the same in host as well
forget(shelf, prompt, Tier.DEVICE, 20, (32,))  KV of [20, 32) and the rung at 32 are left in host alone
"""

from __future__ import annotations

import numpy as np

from stepwell.base.geometry import Geometry, Ints
from stepwell.cache.check import check
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.copies import copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import demote, free_pages
from stepwell.cache.moves import NATIVE, Report, Tier
from stepwell.cache.publish import leave_rung, publish
from stepwell.cache.reuse.plan import Plan
from stepwell.cache.reuse.survey import kv_nodes
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import Item, Node, Rung, RungKind

BLOCK = 4
COSTS = Costs()


def numbers(count: int, seed: int = 0) -> Ints:
    """`count` tokens of a stream of its own."""
    return np.random.default_rng(seed).integers(0, 1000, count).astype(np.int32)


def join(*parts: Ints | list[int]) -> Ints:
    return np.concatenate(parts).astype(np.int32)


def config(
    pages: int = 64,
    host: int = 64,
    *,
    block: int = BLOCK,
    grid: int = BLOCK,
    image: int = 1,
    chunk: int = 16,
    whole: bool = False,
    interval: int = 4096,
    min_load: int | None = 0,
    clean: float = 1.0,
    ghosts: int = 1 << 20,
    disk: int = 0,
) -> CacheConfig:
    """Rules for a small directory; an image takes `image` pages."""
    return CacheConfig(
        Geometry(block, grid, 64, 64 * image),
        device_pages=pages,
        host_slots=host,
        chunk=chunk,
        whole_chunks=whole,
        interval=interval,
        min_load_tokens=min_load,
        clean_share=clean,
        ghost_blocks=ghosts,
        disk_slots=disk,
    )


def directory(
    pages: int = 64,
    host: int = 64,
    *,
    block: int = BLOCK,
    grid: int = BLOCK,
    image: int = 1,
    whole: bool = False,
    min_load: int | None = 0,
    clean: float = 1.0,
    ghosts: int = 1 << 20,
) -> Directory:
    return Directory(
        config(
            pages,
            host,
            block=block,
            grid=grid,
            image=image,
            whole=whole,
            min_load=min_load,
            clean=clean,
            ghosts=ghosts,
        )
    )


def keep(
    shelf: Directory,
    prompt: Ints,
    end: int | None = None,
    rungs: tuple[int, ...] = (),
    salt: str = "",
    now: float = 0.0,
    kind: RungKind = RungKind.PROMPT_END,
) -> list[Rung]:
    """As if a request had computed `prompt[:end]` (whole blocks) and left rungs; the rungs that are new."""
    block = shelf.tree.block
    end = len(prompt) // block * block if end is None else end
    lease = shelf.lease(shelf.tree.root(salt, now).kv, Tier.DEVICE)
    table = BlockTable(np.empty(0, np.int32))
    assert free_pages(shelf, end // block, force=True)
    shelf.grow(table, end // block)
    publish(shelf, lease, prompt, end, table, now)
    left = []
    for position in rungs:
        count = shelf.config.geometry.image_pages
        assert free_pages(shelf, count, force=True)
        rung = leave_rung(shelf, lease, position, shelf.pools[Tier.DEVICE].take(count), kind, now)
        left += [rung] if rung is not None else []
    shelf.close(table)
    shelf.release(lease)
    check(shelf)
    return left


def copy_down(shelf: Directory, ok: bool = True) -> int:
    """Demote all that may be, and let every copy land; how many there were."""
    count = 0
    while moves := demote(shelf, shelf.config.device_pages):
        for move in moves:
            assert copy_landed(shelf, Report(move.ticket, ok))
            count += 1
    check(shelf)
    return count


def forget(
    shelf: Directory, prompt: Ints, tier: Tier, kv_from: int | None = None, rungs: tuple[int, ...] = (), salt: str = ""
) -> None:
    """Drop the copies in `tier` of the rungs named and of the KV from `kv_from` on."""
    for position in rungs:
        shelf.drop(rung_at(shelf, prompt, position, salt).image, tier)
    if kv_from is not None:
        path = shelf.survey(salt, prompt).path
        shelf.node_at(path[-1], kv_from)
        path = shelf.survey(salt, prompt).path
        for node, _, _ in reversed(kv_nodes(path, kv_from, len(prompt))):
            if node.kv.at[tier] is not None:
                shelf.drop(node.kv, tier)
    check(shelf)


def node_ending(shelf: Directory, prompt: Ints, position: int, salt: str = "") -> Node:
    return next(node for node in shelf.survey(salt, prompt).path if node.end == position)


def rung_at(shelf: Directory, prompt: Ints, position: int, salt: str = "") -> Rung:
    rung = node_ending(shelf, prompt, position, salt).rung
    assert rung is not None
    return rung


def device_pages(shelf: Directory, prompt: Ints, end: int) -> list[int]:
    """The pages that hold [0, end) of `prompt`."""
    return [int(page) for page in shelf.pages_of(shelf.survey("", prompt).path[-1], end)]


def planned(shelf: Directory, prompt: Ints, salt: str = "", costs: Costs = COSTS) -> Plan:
    answer = shelf.plan(salt, prompt, costs)
    assert isinstance(answer, Plan), answer
    return answer


def hold(shelf: Directory, count: int) -> BlockTable:
    """A table that owns `count` free pages: a neighbour that leaves less room."""
    table = BlockTable(np.empty(0, np.int32))
    shelf.grow(table, count)
    return table


def where(item: Item) -> str:
    """The tiers of the readable copies: "d", "h", "dh" or ""."""
    return "".join(tier.name[0].lower() for tier in NATIVE if item.has(tier))


def content(shelf: Directory) -> list[tuple[str, int, int, str, tuple[str, str, bool] | None]]:
    """What is cached: (salt, start, end, tiers, rung) of every node, in a fixed order, slot numbers left out."""
    out = []
    for node in shelf.tree.nodes():
        *_, root = node.up()
        salt = next(salt for salt, known in shelf.tree.roots.items() if known is root)
        rung = node.rung
        mark = (rung.kind.name, where(rung.image), rung.superseded) if rung is not None else None
        tokens = np.concatenate([n.tokens for n in reversed(list(node.up()))])
        out.append((salt, node.start, node.end, where(node.kv), mark, tokens.tobytes()))
    return [entry[:5] for entry in sorted(out, key=lambda e: (e[0], e[5]))]


def state_of(shelf: Directory) -> tuple[object, ...]:
    """All that planning must leave alone."""
    pools = {tier: pool.free_slots.tolist() for tier, pool in shelf.pools.items()}
    locks = [tuple(item.locks) for node in shelf.tree.nodes() for item in node.items()]
    used = [node.used for node in shelf.tree.nodes()]
    return (
        content(shelf),
        pools,
        locks,
        used,
        shelf.epoch,
        shelf.reserved,
        shelf.tickets,
        dict(shelf.cached),
        dict(shelf.leased),
        shelf.clean,
        len(shelf.leases),
        shelf.items,
    )
