"""The life of one copy: what there is of an item in a tier.

                      begins                    landed
       ┌─────────┐ ───────────▶ ┌──────────┐ ───────────▶ ┌──────┐  a copy up or down begins  ┌─────────┐
       │ ABSENT  │ ◀─────────── │ ARRIVING │              │ HERE │ ─────────────────────────▶ │ LEAVING │
       └─────────┘   in vain    └──────────┘              └──────┘ ◀───────────────────────── └─────────┘
         │  ▲  ▲  ▲                  ▲                     ▲ │ │          it has ended             │
         │  │  │  └──────────────────┼─ dropped, unlocked ─┼─┘ │ condemned                        │ condemned
         │  │  │                     │                     │   ▼                                  │
         │  │  │      computed and published, or recalled ─┘ ┌───────────┐ ◀──────────────────────┘
         │  │  └──────────────── its last reader let go ──── │ CONDEMNED │
         ▼  │ worth more again       │                       └───────────┘
       ┌─────────┐   begins after all│
       │ REFUSED │ ──────────────────┘      not worth a copy, or one has failed: what is above may go without
       └─────────┘

An item has one life per tier. ABSENT is also how a copy ends. Only HERE and LEAVING can be read by whoever comes. A copy that is
locked (leased) is HERE, LEAVING or CONDEMNED, and stays where it is. Computing is no state of a copy: what a request
computes are its own pages until they are published. A tier with an index of its own would answer a lookup while the copy is ABSENT, and
its answer makes it HERE.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier


class Life(IntEnum):
    """In this order: from CONDEMNED on there are slots, from HERE on they may be read."""

    ABSENT = 0
    REFUSED = 1
    ARRIVING = 2
    CONDEMNED = 3
    HERE = 4
    LEAVING = 5


ABSENT, REFUSED, ARRIVING, CONDEMNED, HERE, LEAVING = Life

LEGAL: dict[Life, tuple[Life, ...]] = {
    ABSENT: (REFUSED, ARRIVING, HERE, CONDEMNED),  # the last: computed from what is condemned
    REFUSED: (ABSENT, ARRIVING, HERE),
    ARRIVING: (ABSENT, HERE, CONDEMNED),
    CONDEMNED: (ABSENT,),
    HERE: (ABSENT, LEAVING, CONDEMNED),
    LEAVING: (HERE, CONDEMNED),
}
"""From each state those that may follow."""


class Standing(IntEnum):
    """What stands in the way of dropping a device copy: nothing there; nothing; a lease, or a child's copy that is in the way; that it is
    the only copy that is meant to be kept."""

    GONE = 0
    FREE = 1
    HELD = 2
    DIRTY = 3


GONE, FREE, HELD, DIRTY = Standing


class IllegalTransition(Exception):
    """A copy was to become what cannot follow what it is: a fault of the engine's own. Says which copy, and what holds it."""


@dataclass(slots=True, eq=False)
class Pending:
    """A copy from `source` to `tier` under way, and the slots there that it is filling."""

    ticket: int
    source: Tier
    tier: Tier
    slots: Ints
