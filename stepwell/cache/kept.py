"""The account of keeps: which paths are worth more than everything else, and until when.

A keep is a retention class, not a lease. What is kept goes last in each tier, under any policy, and may still be copied down; it is
dropped for good only where nothing else can go, so no keep ever makes a request wait or fail.

    root ── kept ── kept ── tip ⟂ rung      a keep counts on every node of its path, and on the images that it names
                     └───── node            so whatever hangs on nothing kept is not kept itself

A *pin* goes last on the device as well; any other keep only below it, where there is a tier below: on the device, whoever comes
back sooner is worth more than whoever has asked for more time. Kept pages are bounded: all in all by a share of the largest
tier, and in each tier no more than that share of it goes last. Where the bound is reached, those that are no pins and end soonest
give way: were the first to stay, who goes on would give way to who may never come back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from stepwell.base.geometry import Geometry, Ints
from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item, Node

Label: TypeAlias = tuple[str, str, str]
"""What a keep is known by: its kind, the salt, a name within these."""

MOST_KEEPS = 4096


@dataclass(slots=True, eq=False)
class Keep:
    """The KV up to the end of `tip`, and `images`, the one at `tip` first; until then. `pin`: on the device too."""

    label: Label
    tip: Node
    images: tuple[Item, ...]
    until: float
    pin: bool = True
    open: bool = True

    def items(self) -> Iterator[Item]:
        yield from self.images
        for node in self.tip.up():
            if node.parent is not None:
                yield node.kv


class Keeps:
    """Every keep of one directory. Changes counts on items, and says whose value has fallen; offering them is the caller's."""

    __slots__ = ("_block", "_ends", "_image_pages", "_serial", "at", "caps", "guarded", "known", "most", "pages")

    def __init__(self, geometry: Geometry, caps: Mapping[Tier, int]) -> None:
        self._block = geometry.block
        self._image_pages = geometry.image_pages
        self.caps = dict(caps)  # slots that may go last
        self.most = max(self.caps.values())
        self.pages = 0
        self.guarded = dict.fromkeys(caps, 0)
        self.known: dict[Label, Keep] = {}
        self.at: dict[Node, list[Keep]] = {}
        self._ends: dict[bool, list[tuple[float, int, Keep]]] = {True: [], False: []}  # pins, and the others
        self._serial = 0

    def widen(self, tier: Tier, cap: int) -> None:
        """`cap` slots of `tier` may go last from now on, more than before; what comes there later uses them."""
        self.caps[tier] = cap
        self.most = max(self.caps.values())

    def size(self, item: Item) -> int:
        """Pages of `item` in any tier."""
        return self._image_pages if item.what == "image" else (item.node.end - item.node.start) // self._block

    def begin(self, keep: Keep) -> None:
        """Count `keep` in. Its label is not known yet."""
        assert keep.label not in self.known
        self.known[keep.label] = keep
        self.at.setdefault(keep.tip, []).append(keep)
        for item in keep.items():
            self.pages += 0 if item.kept else self.size(item)
            item.kept += 1
            item.pinned += keep.pin
            for tier in self.caps:
                self.placed(item, tier, item.at[tier], item.at[tier])
        self._serial += 1
        heapq.heappush(self._ends[keep.pin], (keep.until, self._serial, keep))

    def end(self, keep: Keep) -> list[Item]:
        """Count `keep` out; whoever does not go last any more somewhere."""
        if not keep.open:
            return []
        keep.open = False
        del self.known[keep.label]
        here = self.at[keep.tip]
        here.remove(keep)
        if not here:
            del self.at[keep.tip]
        fallen: list[Item] = []
        for item in keep.items():
            item.kept -= 1
            item.pinned -= keep.pin
            self.pages -= 0 if item.kept else self.size(item)
            lost = [tier for tier in self.caps if item.guarded >> tier & 1 and not self._wanted(item, tier)]
            for tier in lost:
                self._unguard(item, tier, item.at[tier])
            if lost:
                fallen.append(item)
        return fallen

    def _wanted(self, item: Item, tier: Tier) -> bool:
        return item.pinned > 0 if tier == Tier.DEVICE and len(self.caps) > 1 else item.kept > 0

    def ended(self, now: float) -> Keep | None:
        """A keep whose time is over, to be ended; None if there is none. O(1) then."""
        for ends in self._ends.values():
            first = self._first(ends)
            if first is not None and first.until <= now:
                return first
        return None

    def soonest(self) -> Keep | None:
        """The keep that ends first of those that are no pins."""
        return self._first(self._ends[False])

    def _first(self, ends: list[tuple[float, int, Keep]]) -> Keep | None:
        while ends and not ends[0][2].open:
            heapq.heappop(ends)
        if len(ends) > 2 * len(self.known) + 64:  # those that were renewed or ended early
            ends[:] = [entry for entry in ends if entry[2].open]
            heapq.heapify(ends)
        return ends[0][2] if ends else None

    def placed(self, item: Item, tier: Tier, before: Ints | None, after: Ints | None) -> None:
        """The copy of kept `item` in `tier` moves from slots to others (None: nowhere)."""
        if after is None:
            self._unguard(item, tier, before)
        elif (
            not item.guarded >> tier & 1
            and self._wanted(item, tier)
            and self.guarded[tier] + len(after) <= self.caps[tier]
        ):
            item.guarded |= 1 << tier
            self.guarded[tier] += len(after)

    def _unguard(self, item: Item, tier: Tier, slots: Ints | None) -> None:
        if item.guarded >> tier & 1:
            assert slots is not None, f"{item!r} is guarded in {tier.name.lower()}, where it is not"
            item.guarded &= ~(1 << tier)
            self.guarded[tier] -= len(slots)
