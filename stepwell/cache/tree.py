"""The prefix tree: which token runs are cached, and in which tiers their bytes are.

Path-compressed, with exact tokens on the edges: a node is a run of whole blocks, and it is all-or-nothing in each tier. A rung
sits only at the end of a node. Two kinds of things have bytes, the KV of a node and the image of a rung; both are an `Item`.

    root ──[ tokens 0…64 ]── node ──[ 64…8192 ]── node ⟂ rung at 8192
                                └──[ 64…96  ]── node

Structure only: who may drop, copy or lease what is decided elsewhere.
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
"""Tokens of a run that is joined of two: so that joining copies little, and a long run does not go all at once."""


class RungKind(IntEnum):
    """Why a rung was left. Rolling rungs are replaced by the next one of the same request; of a long answer some of them stay as
    waypoints, for whoever goes on from the middle of it."""

    PROMPT_END = 0
    INTERVAL = 1
    BRANCH = 2
    ROLLING = 3
    WAYPOINT = 4


PROMPT_END, INTERVAL, BRANCH, ROLLING, WAYPOINT = RungKind


class Item:
    """The copies of one thing: one life per tier (`stepwell.cache.life`). `Account` alone changes them.

    life      per tier: what there is of it
    at        per tier: its slots from CONDEMNED on, else None
    locks     per tier: leases; what is locked is never dropped
    pending   the one copy between tiers that may be under way
    standing  what stands in the way of dropping the device copy
    below     per tier: children with KV there, so that a node of many children need not ask them all
    held_up   children whose standing is HELD or DIRTY: none above them can go either; `soiled` counts the DIRTY ones
    pins      pins that it is part of (`stepwell.cache.evict.pins`); guarded: the tiers, as bits, in which it goes last for that
    tenant    whose it is (`stepwell.cache.evict.tenants`)
    digests   of KV: of its blocks, from the first on as far as they are known (`stepwell.cache.changes`)
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
        """Whether a copy in `tier` may be read."""
        return self.life[tier] >= HERE

    def size(self, tier: Tier) -> int:
        """Slots of the copy in `tier`."""
        slots = self.at[tier]
        return 0 if slots is None else len(slots)

    def goes_last(self, tier: Tier) -> bool:
        """Whether the copy in `tier` goes after all others, since a pin guards it."""
        return self.guarded >> tier & 1 == 1

    @property
    def copies(self) -> int:
        """Tiers in which it has slots."""
        device, host, disk = self.at
        return (device is not None) + (host is not None) + (disk is not None)

    def best(self, below: Tier | None = None) -> Tier | None:
        """The fastest tier with a readable copy, of those below `below`, if one is given."""
        life = self.life
        for tier in TIERS if below is None else TIERS[below + 1 :]:
            if life[tier] >= HERE:
                return tier
        return None

    @property
    def idle(self) -> bool:
        """No copy, no lease, nothing in flight."""
        return self.pending is None and not self.copies and not any(self.locks)

    def __repr__(self) -> str:
        lives = ", ".join(f"{t.name.lower()} {self.life[t].name.lower()}" for t in TIERS if self.life[t] != ABSENT)
        return f"<{self.what} of {self.node!r}: {lives or 'nowhere'}; locks {self.locks}>"


OLD = 3
"""Depth of a rung that nobody is likely to resume from."""


class Rung:
    """A checkpoint of the recurrent state at the end of a node.

    depth   rungs left below it on its path since it was last used, `OLD` at most: 0 is the tip of a path
    line    tokens of the longest prompt known to run through it
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
        """True for the rung of an answer that nobody is expected to go on from, and for a waypoint that nobody has gone on from."""
        return self.depth == OLD and (self.kind == WAYPOINT or (self.kind == ROLLING and REFUSED in self.image.life))

    @property
    def superseded(self) -> bool:
        """Whether two deeper ones of its path serve the turns to come, or it is of an answer left out; never so at a known fork."""
        return self.depth >= 2 and self.kind != BRANCH


class Node:
    """A run of whole blocks below `parent`: tokens of positions [start, end), as the bytes `raw`, which compare fastest."""

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
        """0 on a path that goes on; where its path went on elsewhere, 1 to 4: the more, the less likely that anyone goes back."""
        self.awaited = 0
        """Suspended requests that go on at `end` with a state of their own."""

    @property
    def tokens(self) -> Ints:
        """The tokens of [start, end): a read-only view."""
        return np.frombuffer(self.raw, np.int32)

    @property
    def vacant(self) -> bool:
        """A leaf that holds nothing, for nobody."""
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
    """The empty prefix of one salt, or what stands in its place above a condemned subtree (see `Tree.expel`)."""

    __slots__ = ("salt",)

    def __init__(self, salt: str, now: float) -> None:
        super().__init__(None, 0, b"", now)
        self.salt = salt
        self.kv.tenant = tenant_of(salt)


GONE_NODE = Node(None, 0, b"", 0.0)
"""What the KV of a node that has left the tree belongs to. Were that still the node, each would keep the other alive until the garbage
collector walks through the whole tree to find them."""


class Tree:
    """Roots by salt, and the operations that change shape but not content.

    condemned  roots of subtrees that nothing finds any more, each kept only as long as something in it is held
    """

    __slots__ = ("block", "condemned", "roots")

    def __init__(self, block: int) -> None:
        self.block = block
        self.roots: dict[str, Root] = {}
        self.condemned: dict[Root, None] = {}

    def root(self, salt: str, now: float) -> Root:
        """The root of this salt, made if need be. Different salts share nothing."""
        node = self.roots.get(salt)
        if node is None:
            node = self.roots[salt] = Root(salt, now)
        return node

    def key(self, tokens: Ints, at: int) -> bytes:
        """What a child is filed under: its first block, exactly."""
        return tokens[at : at + self.block].tobytes()

    def head(self, node: Node) -> bytes:
        """What `node` is filed under."""
        return node.raw[: self.block * TOKEN_BYTES]

    def attach(self, parent: Node, tokens: Ints, now: float) -> Node:
        """A new child holding a copy of `tokens` (whole blocks, at least one)."""
        node = Node(parent, parent.end, tokens.tobytes(), now)
        parent.children[self.head(node)] = node
        return node

    def detach(self, node: Node) -> None:
        """Take a childless node out of the tree. Whoever remembers it still does not keep its tokens."""
        assert node.parent is not None and not node.children
        del node.parent.children[self.head(node)]
        _leave(node)

    def expel(self, top: Node, now: float) -> Root:
        """Move `top`, a child of a root, with all below it under a new root of its own, where no prompt leads. Leases move with it."""
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
        """Forget a root that has no children and that nobody holds."""
        assert not root.children
        self.condemned.pop(root, None)
        if self.roots.get(root.salt) is root:
            del self.roots[root.salt]
        _leave(root)

    def is_condemned(self, node: Node) -> bool:
        """Whether `node` is part of a condemned subtree. O(1) while there is none, else O(depth)."""
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
        """Let a leaf go on by `tokens` (whole blocks)."""
        assert not node.children and len(tokens) % self.block == 0
        node.raw += tokens.tobytes()
        node.end += len(tokens)

    def joinable(self, node: Node) -> bool:
        """Whether `node` and its parent say the same about every tier, so that one node can stand for both."""
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
        """Fold the parent into `node`. No lease and no pin ends at the parent: it has as many as its only child."""
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
    """`node` is no part of the tree any more: nothing that still names it keeps its tokens, and nothing of it keeps it."""
    node.parent = None
    node.raw = b""
    node.kv.node = GONE_NODE


def _divide(lower: Item, upper: Item, blocks: int) -> None:
    """Hand the first `blocks` slots of every extent, the leases and the pending copy to the upper half, which lives as the lower."""
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
