"""Every invariant of the directory, recomputed from scratch. Tests call it after each step; it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.life import ARRIVING, CONDEMNED, DIRTY, FREE, GONE, HELD, LEAVING, Standing
from stepwell.cache.moves import DEVICE, DISK, HOST, NATIVE, Tier
from stepwell.cache.tree import Item, Node


def check(directory: Directory, private: Iterable[Ints] = (), promised: int | None = None) -> None:
    """Assert that the directory is whole.

    private   device pages that requests own (block tables' own pages, images not yet published)
    promised  sum of the reservations of all tables, where the caller knows them
    """
    nodes = list(directory.tree.nodes())
    for node in nodes:
        _check_node(directory, node)
    _check_slots(directory, nodes, private)
    _check_totals(directory, nodes)
    _check_flights(directory, nodes)
    _check_locks(directory, nodes)
    _check_candidates(directory, nodes)
    _check_pins(directory, nodes)
    _check_tenants(directory, nodes)
    _check_condemned(directory)
    if promised is not None:
        assert directory.reserved == promised, f"{directory.reserved} pages reserved, tables hold {promised}"


def _check_node(directory: Directory, node: Node) -> None:
    block, parent = directory.tree.block, node.parent
    assert parent is not None
    assert node.end > node.start and (node.end - node.start) % block == 0, f"{node!r} is not a run of whole blocks"
    assert len(node.tokens) == node.end - node.start, f"{node!r} has {len(node.tokens)} tokens"
    assert node.start == parent.end, f"{node!r} does not follow {parent!r}"
    assert parent.children.get(directory.tree.head(node)) is node, f"{node!r} is filed wrongly"
    for tier in NATIVE:
        slots = node.kv.at[tier]
        assert slots is None or len(slots) * block == node.end - node.start, (
            f"{node.kv!r} has an extent of another length"
        )
    if node.kv.at[DEVICE] is not None and parent.parent is not None:
        assert parent.kv.at[DEVICE] is not None, f"{node!r} is on the device below a gap"
    children = [child.kv for child in node.children.values()]
    assert node.kv.below == [sum(kv.at[t] is not None for kv in children) for t in NATIVE], (
        f"{node!r} miscounts children"
    )
    assert node.kv.soiled == sum(kv.standing == DIRTY for kv in children), f"{node!r} miscounts dirty children"
    assert node.kv.held_up == sum(kv.standing >= HELD for kv in children), f"{node!r} miscounts children that hold it"
    for item in node.items():
        _check_life(item)
    if node.rung is not None:
        assert node.rung.image.node is node
        assert not node.rung.image.idle, f"the rung of {node!r} has no image"
        for slots in node.rung.image.at:
            assert slots is None or len(slots) == directory.config.geometry.image_pages
    assert all(node.start < p <= node.end for p in node.lost)


def _check_life(item: Item) -> None:
    """What each copy is, and what is under way, say the same."""
    pending = item.pending
    for tier in NATIVE:
        life = item.life[tier]
        assert (life >= CONDEMNED) == (item.at[tier] is not None), f"{item!r} has {item.size(tier)} slots in {tier!r}"
        assert life != ARRIVING or (pending is not None and pending.tier == tier), f"{item!r} waits in {tier!r}"
        assert life != LEAVING or (pending is not None and pending.source == tier), f"{item!r} is read in {tier!r}"
    if pending is not None:
        source = item.life[pending.source]
        assert source in (LEAVING, CONDEMNED), f"{item!r} is read in {pending.source.name.lower()} for {pending}"


def _check_slots(directory: Directory, nodes: list[Node], private: Iterable[Ints]) -> None:
    """Each slot is free, cached, or private, exactly once."""
    for tier, pool in directory.pools.items():
        used: list[Ints] = [np.empty(0, np.int32)]
        for item in _items(nodes):
            slots = item.at[tier]
            if slots is not None:
                used.append(slots)
            if item.pending is not None and item.pending.tier == tier:
                used.append(item.pending.slots)
        if tier == DEVICE:
            used.extend(private)
        pool.check(np.concatenate(used))


def _check_totals(directory: Directory, nodes: list[Node]) -> None:
    items = list(_items(nodes))
    for tier in directory.pools:
        sized = [(item, len(slots)) for item in items if (slots := item.at[tier]) is not None]
        cached = sum(size for _, size in sized)
        leased = sum(size for item, size in sized if item.locks[tier])
        assert directory.cached[tier] == cached, f"{tier.name}: {directory.cached[tier]} cached, counted {cached}"
        assert directory.leased[tier] == leased, f"{tier.name}: {directory.leased[tier]} leased, counted {leased}"
    if HOST in directory.pools:
        backed = sum(i.size(HOST) for i in items if directory.candidates.safe(i, HOST))
        assert directory.backed == backed, f"{directory.backed} slots of host backed, counted {backed}"
    if DISK in directory.pools:
        dormant, free = directory.archive.catalogue.pages, directory.pools[DISK].free
        assert 0 <= dormant <= free, f"{dormant} dormant pages on disk, {free} slots for them"
    for (source, target), moving in directory.moving.items():
        copies = (i.pending for i in items if i.pending is not None)
        counted = sum(len(copy.slots) for copy in copies if (copy.source, copy.tier) == (source, target))
        assert moving == counted, f"{moving} slots on the way from {source.name} to {target.name}, counted {counted}"
    _check_clean(directory, nodes)
    assert directory.items == len(items), f"{directory.items} items, counted {len(items)}"
    ghosts = sum(n.end - n.start for n in nodes if all(a is None for a in n.kv.at)) // directory.tree.block
    assert directory.ghost_blocks == ghosts, f"{directory.ghost_blocks} ghost blocks, counted {ghosts}"


def _check_flights(directory: Directory, nodes: list[Node]) -> None:
    """Each copy between tiers is in flight or overdue, with the items that wait for its end."""
    waiting = {id(i): i.pending.ticket for i in _items(nodes) if i.pending is not None}
    flights = [*directory.in_flight.items(), *directory.overdue.items()]
    known = {id(item): ticket for ticket, flight in flights for item in flight.items}
    assert waiting == known, (
        f"tickets {sorted(waiting.values())} are waited for, {sorted(known.values())} are under way"
    )
    assert directory.in_flight.keys().isdisjoint(directory.overdue), "a copy is both in flight and overdue"


def _check_clean(directory: Directory, nodes: list[Node]) -> None:
    """`clean` is what dropping leaf after leaf would free without losing an only copy."""
    held: set[int] = set()
    clean = 0
    for node in sorted(nodes, key=lambda n: -n.start):
        held_up = any(id(child) in held for child in node.children.values())
        for item in node.items():
            standing = _standing(directory, item, held_up and item.what == "kv")
            assert item.standing == standing, f"{item!r} counts as {item.standing.name}, but is {standing.name}"
            clean += item.size(DEVICE) if standing == FREE else 0
            if item.what == "kv" and standing >= HELD:
                held.add(id(node))
    assert directory.clean == clean, f"{directory.clean} clean, counted {clean}"


def _standing(directory: Directory, item: Item, held_up: bool) -> Standing:
    if item.at[DEVICE] is None:
        return GONE
    if not directory.candidates.safe(item, DEVICE):
        return DIRTY
    return HELD if item.locks[DEVICE] or held_up else FREE


def _check_locks(directory: Directory, nodes: list[Node]) -> None:
    """Locks are exactly what the open leases say."""
    expected: dict[tuple[int, Tier], int] = {}
    for lease in directory.leases:
        assert lease.open
        item = lease.item
        path = [item] if item.what == "image" else [n.kv for n in item.node.up()]
        for held in path:
            expected[id(held), lease.tier] = expected.get((id(held), lease.tier), 0) + 1
    for item in _items([*nodes, *directory.tree.roots.values(), *directory.tree.condemned]):
        for tier in NATIVE:
            count = expected.pop((id(item), tier), 0)
            assert item.locks[tier] == count, f"{item!r}: {item.locks[tier]} locks in {tier.name}, {count} leases"
    assert not expected, f"{len(expected)} leased items are not in the tree"


def _check_candidates(directory: Directory, nodes: list[Node]) -> None:
    """Whatever may be dropped or copied down is a known candidate, so no idle page is ever out of reach."""
    rankings = (*directory.candidates.drops.values(), *directory.candidates.dirty.values(), directory.candidates.twice)
    ranked = [(ranking, ranking.items()) for ranking in rankings]
    for item in _items(nodes):
        for ranking, ids in ranked:
            assert not ranking.live(item) or id(item) in ids, f"{item!r} is a candidate that no ranking knows"
        if DISK in directory.pools and directory.config.write_idle:
            known = item in directory.candidates.backlog
            assert known or not directory.candidates.unsaved(item), (
                f"{item!r} is not on disk, and nobody will look at it"
            )


def _check_condemned(directory: Directory) -> None:
    """What is condemned is held, and read by nobody who comes anew: its copies are bad, and each is locked."""
    for root in directory.tree.condemned:
        assert root.children, f"a condemned subtree of salt {root.salt!r} is empty, and still there"
        assert directory.tree.roots.get(root.salt) is not root, f"the condemned root of salt {root.salt!r} can be found"
    for node in filter(directory.tree.is_condemned, directory.tree.nodes()):
        assert not node.vacant, f"{node!r} is condemned and holds nothing, and is still there"
        for item in node.items():
            for tier in directory.pools:
                where = f"{item!r} is condemned, and {tier.name.lower()}"
                assert not item.has(tier), f"{where} can be read"
                assert item.at[tier] is None or item.locks[tier], f"{where} holds it for nobody"


def _check_pins(directory: Directory, nodes: list[Node]) -> None:
    """Items are pinned as often as open pins say; pages and pins by tenant, and what goes last, are counted and within bounds."""
    pins = directory.pins
    times: Counter[int] = Counter()
    pinned: dict[int, Item] = {}
    for pin in pins.known.values():
        assert pin.open and pin.tip.rung is not None, f"nothing is pinned at {pin.tip!r}"
        assert pin.tip.rung.image is pin.image and pin in pins.at[pin.tip]
        times.update(map(id, pin.items()))
        pinned |= {id(item): item for item in pin.items()}
    assert sum(map(len, pins.at.values())) == len(pins.known), "a pin is filed twice, or has ended and is filed"
    for item in _items(nodes):
        assert item.pins == times[id(item)], f"{item!r} is pinned {item.pins} times, {times[id(item)]} say so"
        assert item.pins or not item.guarded, f"{item!r} goes last, and nobody pins it"
    pages: Counter[str] = Counter()
    for item in pinned.values():
        pages[item.tenant] += pins.size(item)
    assert pins.pages == pages.total() <= pins.most, f"{pins.pages} pages pinned of {pins.most}, counted {pages}"
    assert pins.pages_of == pages, f"pages pinned by tenant: {pins.pages_of}, counted {pages}"
    assert pins.pins_of == Counter(pin.tenant for pin in pins.known.values()), f"pins by tenant: {pins.pins_of}"
    for tier in directory.pools:
        guarded = sum(item.size(tier) for item in _items(nodes) if item.guarded >> tier & 1)
        told = f"{tier.name}: {pins.guarded[tier]} slots go last, counted {guarded} of {pins.caps[tier]}"
        assert pins.guarded[tier] == guarded <= pins.caps[tier], told


def _check_tenants(directory: Directory, nodes: list[Node]) -> None:
    """What each tenant holds is counted, if that is bounded at all."""
    if directory.tenants is None:
        return
    for tier in directory.pools:
        held: Counter[str] = Counter()
        for item in _items(nodes):
            held[item.tenant] += item.size(tier)
        told = directory.tenants.held[tier]
        assert told == +held, f"{tier.name}: tenants hold {told}, counted {+held}"
        greedy = {
            tenant
            for tenant, slots in held.items()
            if slots >= directory.config.tenant_share * directory.pools[tier].total
        }
        assert set(directory.tenants.greediest(tier)) == greedy, f"{tier.name}: {greedy} hold more than their share"


def _items(nodes: Iterable[Node]) -> Iterable[Item]:
    for node in nodes:
        yield from node.items()
