"""The prefix tree: which token runs are cached, and in which tiers their bytes are.

Path-compressed, with exact tokens on the edges: a node is a run of whole blocks, and it is all-or-nothing in each tier. A rung
sits only at the end of a node. Two kinds of things have bytes, the KV of a node and the image of a rung; both are an `Item`.

    root ──[ tokens 0…64 ]── node ──[ 64…8192 ]── node ⟂ rung at 8192
                                └──[ 64…96  ]── node

This module holds structure alone. What may be dropped, copied or leased is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from typing import Literal

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.disk.names import tenant_of
from stepwell.cache.life import ABSENT, DIRTY, GONE, HELD, HERE, REFUSED, Life, Pending, Standing
from stepwell.cache.moves import NATIVE, Tier

TIERS = NATIVE
TOKEN_BYTES = 4
"""Bytes of a token: int32."""
DIGEST = 32
"""Bytes of the digest of a block."""
MOST_JOINED = 8192
"""Most tokens of a node made by joining two: joining then copies little, and eviction does not drop a very long run at once."""


class RungKind(IntEnum):
    """Why a rung was left. The next rolling rung of a request replaces the one before. In a long answer some of them stay as waypoints, for
    requests that continue from the middle of it."""

    PROMPT_END = 0
    INTERVAL = 1
    BRANCH = 2
    ROLLING = 3
    WAYPOINT = 4


PROMPT_END, INTERVAL, BRANCH, ROLLING, WAYPOINT = RungKind


class Item:
    """The copies of one thing: one life per tier (`stepwell.cache.life`). `Account` alone changes them.

    life      per tier: state of the copy there
    at        per tier: slots of the copy from CONDEMNED on, else None
    locks     per tier: number of leases; a locked copy is never dropped
    pending   the copy between tiers that is under way; at most one at a time
    standing  what keeps the device copy from being dropped
    below     per tier: number of children with KV there
    held_up   number of children whose standing is HELD or DIRTY: this item cannot be dropped before them; `soiled`: DIRTY ones alone
    pins      number of pins on it (`stepwell.cache.evict.pins`); guarded: tiers, as bits, in which it is therefore dropped last
    tenant    owner of its salt (`stepwell.cache.evict.tenants`)
    digests   of KV: digests of its blocks, from the first on, as far as they have been computed (`stepwell.cache.changes`)
    """

    __slots__ = (
        "at",
        "below",
        "digests",
        "guarded",
        "held_up",
        "life",
        "locks",
        "node",
        "pending",
        "pins",
        "soiled",
        "standing",
        "tenant",
        "what",
    )

    def __init__(self, what: Literal["kv", "image"], node: Node) -> None:
        self.what = what
        self.node = node
        self.life: list[Life] = [ABSENT] * len(TIERS)
        self.at: list[Ints | None] = [None] * len(TIERS)
        self.locks = [0] * len(TIERS)
        self.pending: Pending | None = None
        self.standing: Standing = GONE
        self.held_up = 0
        self.soiled = 0
        self.below = [0] * len(TIERS)
        self.pins = self.guarded = 0
        self.digests = b""
        self.tenant: str = "" if node.parent is None else node.parent.kv.tenant

    def has(self, tier: Tier) -> bool:
        """True if the copy in `tier` may be read."""
        return self.life[tier] >= HERE

    def size(self, tier: Tier) -> int:
        """Number of slots of the copy in `tier`; 0 if there is none."""
        slots = self.at[tier]
        return 0 if slots is None else len(slots)

    def goes_last(self, tier: Tier) -> bool:
        """True if a pin guards the copy in `tier`: it is dropped after all others."""
        return self.guarded >> tier & 1 == 1

    @property
    def copies(self) -> int:
        """Number of tiers in which it has slots."""
        device, host, disk = self.at
        return (device is not None) + (host is not None) + (disk is not None)

    def best(self, below: Tier | None = None) -> Tier | None:
        """The fastest tier with a readable copy, or None. With `below`, only tiers below that one count."""
        life = self.life
        for tier in TIERS if below is None else TIERS[below + 1 :]:
            if life[tier] >= HERE:
                return tier
        return None

    @property
    def idle(self) -> bool:
        """True if it has no copy, no lease and nothing in flight."""
        return self.pending is None and not self.copies and not any(self.locks)

    def __repr__(self) -> str:
        lives = ", ".join(f"{t.name.lower()} {self.life[t].name.lower()}" for t in TIERS if self.life[t] != ABSENT)
        return f"<{self.what} of {self.node!r}: {lives or 'nowhere'}; locks {self.locks}>"


OLD = 3
"""Depth of a rung that no request is likely to resume from."""


class Rung:
    """A checkpoint of the recurrent state at the end of a node.

    depth   number of rungs left below it on its path since it was last used, at most `OLD`; 0 at the tip of a path
    line    tokens of the longest known prompt that contains its path
    """

    __slots__ = ("depth", "image", "kind", "line", "used", "uses")

    def __init__(self, node: Node, kind: RungKind, now: float) -> None:
        self.image = Item("image", node)
        self.kind = kind
        self.used = now
        self.uses = 0
        self.depth = 0
        self.line = node.end

    @property
    def given_up(self) -> bool:
        """True for a rung at the end of an answer that clients are not expected to send back, and for an unused waypoint."""
        return self.depth == OLD and (self.kind == WAYPOINT or (self.kind == ROLLING and REFUSED in self.image.life))

    @property
    def superseded(self) -> bool:
        """True if two deeper rungs of its path serve the next turns better, or its answer was not sent back. Never at a known fork."""
        return self.depth >= 2 and self.kind != BRANCH


class Node:
    """A run of whole blocks below `parent`: the tokens of positions [start, end). `raw` holds them as bytes, which compare fastest."""

    __slots__ = ("awaited", "children", "end", "kv", "left", "lost", "parent", "raw", "rung", "start", "used", "uses")

    def __init__(self, parent: Node | None, start: int, raw: bytes, now: float) -> None:
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.start = start
        self.end = start + len(raw) // TOKEN_BYTES
        self.raw = raw
        self.kv = Item("kv", self)
        self.rung: Rung | None = None
        self.used = now
        self.uses = 0
        self.lost: tuple[int, ...] = ()
        """Positions in (start, end] where a rung once stood."""
        self.left = 0
        """0 while its path goes on. 1 to 4 once its conversation went on along another branch; the higher, the less likely is a return."""
        self.awaited = 0
        """Number of suspended requests that will continue at `end` with a state of their own."""

    @property
    def tokens(self) -> Ints:
        """The tokens of [start, end): a read-only view."""
        return np.frombuffer(self.raw, np.int32)

    @property
    def vacant(self) -> bool:
        """True for a leaf without copies and leases."""
        return not self.children and self.rung is None and self.kv.idle

    def up(self) -> Iterator[Node]:
        """This node and its ancestors, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def items(self) -> Iterator[Item]:
        yield self.kv
        if self.rung is not None:
            yield self.rung.image

    def __repr__(self) -> str:
        return f"[{self.start},{self.end})"


class Root(Node):
    """The empty prefix of one salt, or the root of a condemned subtree (see `Tree.expel`)."""

    __slots__ = ("salt",)

    def __init__(self, salt: str, now: float) -> None:
        super().__init__(None, 0, b"", now)
        self.salt = salt
        self.kv.tenant = tenant_of(salt)


GONE_NODE = Node(None, 0, b"", 0.0)
"""Stands for the node of KV whose node has left the tree. A reference to the real node would be a cycle, which only a full garbage
collection of the whole tree would find."""


class Tree:
    """Roots by salt, and the operations that change the shape of the tree but not its content.

    condemned  roots of subtrees that lookups no longer reach; each stays only as long as something in it is leased
    """

    __slots__ = ("block", "condemned", "roots")

    def __init__(self, block: int) -> None:
        self.block = block
        self.roots: dict[str, Root] = {}
        self.condemned: dict[Root, None] = {}

    def root(self, salt: str, now: float) -> Root:
        """The root of this salt; creates it if there is none. Different salts share nothing."""
        node = self.roots.get(salt)
        if node is None:
            node = self.roots[salt] = Root(salt, now)
        return node

    def key(self, tokens: Ints, at: int) -> bytes:
        """Key of the child whose first block is that of `tokens` at position `at`."""
        return tokens[at : at + self.block].tobytes()

    def head(self, node: Node) -> bytes:
        """Key of `node` among its parent's children."""
        return node.raw[: self.block * TOKEN_BYTES]

    def attach(self, parent: Node, tokens: Ints, now: float) -> Node:
        """Add a child with a copy of `tokens` (whole blocks, at least one); returns it."""
        node = Node(parent, parent.end, tokens.tobytes(), now)
        parent.children[self.head(node)] = node
        return node

    def detach(self, node: Node) -> None:
        """Remove a node without children from the tree and free its tokens, even if something still refers to the node."""
        assert node.parent is not None and not node.children
        del node.parent.children[self.head(node)]
        _leave(node)

    def expel(self, top: Node, now: float) -> Root:
        """Move the subtree of `top`, a child of a root, under a new root that lookups do not reach. Leases stay valid. Returns the root."""
        old = top.parent
        assert isinstance(old, Root) and old not in self.condemned, f"{top!r} is not the beginning of a findable path"
        new = Root(old.salt, now)
        del old.children[self.head(top)]
        new.children[self.head(top)] = top
        top.parent = new
        for tier in TIERS:
            here = top.kv.at[tier] is not None
            old.kv.below[tier] -= here
            new.kv.below[tier] += here
            old.kv.locks[tier] -= top.kv.locks[tier]  # every lease below `top` holds its root as well
            new.kv.locks[tier] += top.kv.locks[tier]
        for counts, sign in ((old.kv, -1), (new.kv, 1)):
            counts.held_up += sign * (top.kv.standing >= HELD)
            counts.soiled += sign * (top.kv.standing is DIRTY)
        self.condemned[new] = None
        return new

    def uproot(self, root: Root) -> None:
        """Remove a root without children and leases."""
        assert not root.children
        self.condemned.pop(root, None)
        if self.roots.get(root.salt) is root:
            del self.roots[root.salt]
        _leave(root)

    def is_condemned(self, node: Node) -> bool:
        """True if `node` is part of a condemned subtree. O(1) while there is none, else O(depth)."""
        if not self.condemned:
            return False
        *_, top = node.up()
        return isinstance(top, Root) and top in self.condemned

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` at position `at`; returns the new upper half. `node` stays the lower one, so leases and rung stay with it."""
        assert node.parent is not None and node.start < at < node.end and at % self.block == 0
        cut = (at - node.start) * TOKEN_BYTES
        upper = Node(node.parent, node.start, node.raw[:cut], node.used)
        upper.uses = node.uses
        upper.left = node.left
        upper.lost = tuple(p for p in node.lost if p <= at)
        node.parent.children[self.head(node)] = upper
        node.raw = node.raw[cut:]
        node.start = at
        node.parent = upper
        node.lost = tuple(p for p in node.lost if p > at)
        upper.children[self.head(node)] = node
        _divide(node.kv, upper.kv, (upper.end - upper.start) // self.block)
        return upper

    def lengthen(self, node: Node, tokens: Ints) -> None:
        """Append `tokens` (whole blocks) to a leaf."""
        assert not node.children and len(tokens) % self.block == 0
        node.raw += tokens.tobytes()
        node.end += len(tokens)

    def joinable(self, node: Node) -> bool:
        """True if `node` and its parent have the same state in every tier, so that one node can replace both."""
        parent = node.parent
        if parent is None or parent.parent is None or len(parent.children) != 1:
            return False
        if parent.rung is not None or parent.awaited or parent.left != node.left:
            return False
        if node.end - parent.start > MOST_JOINED:
            return False
        a, b = parent.kv, node.kv
        return (
            a.pending is None
            and b.pending is None
            and a.locks == b.locks
            and (a.pins, a.guarded) == (b.pins, b.guarded)
            and a.life == b.life
        )

    def join(self, node: Node) -> None:
        """Merge the parent into `node`. No lease and no pin ends at the parent: it has as many as its only child. O(tokens)."""
        parent = node.parent
        assert parent is not None and parent.parent is not None
        for tier in TIERS:
            above, below = parent.kv.at[tier], node.kv.at[tier]
            if above is not None and below is not None:
                node.kv.at[tier] = np.concatenate([above, below])
        whole = len(parent.kv.digests) * self.block == (parent.end - parent.start) * DIGEST
        node.kv.digests = parent.kv.digests + (node.kv.digests if whole else b"")
        node.raw = parent.raw + node.raw
        node.start = parent.start
        node.lost = parent.lost + node.lost
        node.used = max(node.used, parent.used)
        node.uses = max(node.uses, parent.uses)
        node.parent = parent.parent
        node.parent.children[self.head(node)] = node
        parent.children = {}
        _leave(parent)

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, condemned ones included, parents first."""
        stack: list[Node] = [*self.roots.values(), *self.condemned]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())


def _leave(node: Node) -> None:
    """Cut the references of a node that has left the tree, so that its memory is freed at once."""
    node.parent = None
    node.raw = b""
    node.kv.node = GONE_NODE


def _divide(lower: Item, upper: Item, blocks: int) -> None:
    """Give the upper half the first `blocks` slots in every tier, and the same states, locks, pins and pending copy as the lower."""
    for tier in TIERS:
        slots = lower.at[tier]
        if slots is not None:
            upper.at[tier], lower.at[tier] = slots[:blocks].copy(), slots[blocks:].copy()
    upper.digests, lower.digests = lower.digests[: blocks * DIGEST], lower.digests[blocks * DIGEST :]
    upper.locks = list(lower.locks)
    upper.life = list(lower.life)
    upper.pins, upper.guarded = lower.pins, lower.guarded
    upper.standing = lower.standing
    upper.held_up = int(lower.standing >= HELD)
    upper.soiled = int(lower.standing is DIRTY)
    upper.below = [int(slots is not None) for slots in lower.at]
    if lower.pending is not None:
        pending = lower.pending
        upper.pending = replace(pending, slots=pending.slots[:blocks])
        lower.pending = replace(pending, slots=pending.slots[blocks:])
