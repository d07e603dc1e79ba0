"""What is known of conversations by the ids that clients give them: where their last turns ended, and how long they think.

A hint, never more: an id may be wrong, shared, or made up, so it only raises or lowers what entries are worth. Nothing is found,
skipped or dropped because of it. Tips are nodes of the tree, which may have gone since: who reads them looks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias

from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.tree import OLD, Node, RungKind

MOST_SESSIONS = 4096
BRANCHES = 8
"""Ends of one session that are remembered: sub-agents, retries; the one that ended last first."""
_WEIGHT = 0.3
"""Of the last think time in the estimate."""

Key: TypeAlias = tuple[str, str]
"""Salt and session id."""


@dataclass(slots=True)
class Branch:
    """One line of a session: the node where its last turn ended, and rungs that its turns before left on the way there, each with how
    often it had been used when its turn ended."""

    tip: Node
    uses: int
    passed: list[tuple[Node, int]] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """`think`: seconds between an answer and the next prompt, as a moving average; None before the first."""

    branches: list[Branch] = field(default_factory=list)
    ended: float | None = None
    think: float | None = None

    @property
    def next_turn(self) -> float | None:
        """When the next turn is expected."""
        return None if self.ended is None or self.think is None else self.ended + self.think

    def tips(self) -> list[Node]:
        """Where it could go on, the latest first; those that are still in the tree."""
        return [branch.tip for branch in self.branches if branch.tip.parent is not None]


class Sessions:
    """The sessions that were last heard of; at most `MOST_SESSIONS`."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: OrderedDict[Key, Session] = OrderedDict()

    def find(self, key: Key) -> Session | None:
        return self.known.get(key)

    def began(self, key: Key, now: float) -> None:
        """A turn has come."""
        session = self.known.get(key)
        if session is None:
            session = self.known[key] = Session()
            while len(self.known) > MOST_SESSIONS:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        if session.ended is not None:
            thought = now - session.ended
            session.think = thought if session.think is None else session.think + _WEIGHT * (thought - session.think)
            session.ended = None

    def ended(self, directory: Directory, key: Key, end: Node, now: float) -> Session | None:
        """A turn has ended at `end`: its rung is where the next one will resume, and older ones of the same line matter less."""
        session = self.known.get(key)
        tip = next((node for node in end.up() if node.rung is not None), None)
        if session is None or tip is None:
            return None
        session.ended = now
        above = {id(node) for node in tip.up()}
        mine = [branch for branch in session.branches if id(branch.tip) in above]
        others = [
            branch for branch in session.branches if id(branch.tip) not in above and branch.tip.parent is not None
        ]
        passed = [rung for branch in mine for rung in branch.passed]
        passed += [(branch.tip, branch.uses) for branch in mine if branch.tip is not tip]
        for node, uses in passed[:-1]:
            _supersede(directory, node, uses)
        session.branches = [Branch(tip, 0 if tip.rung is None else tip.rung.uses, passed[-1:]), *others][:BRANCHES]
        return session

    def forget(self, key: Key) -> Session | None:
        """It has ended for good."""
        return self.known.pop(key, None)


def _supersede(directory: Directory, node: Node, uses: int) -> None:
    """The rung at `node` has two deeper ones of its session; a fork hides that from who looks at the tree alone."""
    rung = node.rung
    fork = rung is None or rung.kind == RungKind.BRANCH or rung.image.kept or rung.uses > uses + 1
    if rung is None or fork or rung.superseded or not directory.policy.thins:
        return
    rung.depth = OLD
    directory.offer(rung.image)


def devalue(directory: Directory, tip: Node) -> int:
    """Nobody will go on from `tip`: what it alone has led to is the first to go, and not worth a copy; pages of that.

    Exclusive are the nodes up to the first that others have to do with: that branches, is kept, is held, or whose rung is a branch's.
    """
    pages, below = 0, tip
    for node in tip.up():
        if node.parent is None or _shared(node, below):
            break
        node.used = 0.0
        if node.rung is not None:
            node.rung.used, node.rung.depth = 0.0, OLD
        for item in node.items():
            pages += max(map(item.size, Tier))
            directory.refuse(item, directory.offers.next_tier)
        below = node
    return pages


def _shared(node: Node, below: Node) -> bool:
    """Whether others than who went from `node` to `below` have to do with it; KV that nothing resumes from is nobody's."""
    others = [child for child in node.children.values() if child is not below]
    forks = any(child.children or child.rung is not None for child in others)
    branch = node.rung is not None and node.rung.kind == RungKind.BRANCH
    return forks or branch or node.kv.kept > 0 or any(node.kv.locks) or node.awaited > 0
