"""The states of one copy: what a tier has of an item.

                      begins                    landed
       ┌─────────┐ ───────────▶ ┌──────────┐ ───────────▶ ┌──────┐  a copy up or down begins  ┌─────────┐
       │ ABSENT  │ ◀─────────── │ ARRIVING │              │ HERE │ ─────────────────────────▶ │ LEAVING │
       └─────────┘   failed     └──────────┘              └──────┘ ◀───────────────────────── └─────────┘
         │  ▲  ▲  ▲                  ▲                     ▲ │ │          it has ended             │
         │  │  │  └──────────────────┼─ dropped, unlocked ─┼─┘ │ condemned                        │ condemned
         │  │  │                     │                     │   ▼                                  │
         │  │  │      computed and published, or recalled ─┘ ┌───────────┐ ◀──────────────────────┘
         │  │  └──────────────── its last reader let go ──── │ CONDEMNED │
         ▼  │ worth more again       │                       └───────────┘
       ┌─────────┐   begins after all│
       │ REFUSED │ ──────────────────┘      not worth a copy, or one has failed: what is above may go without
       └─────────┘

An item has one state (its life) per tier. A copy ends as it began, ABSENT. New requests can read HERE and LEAVING only. A locked (leased)
copy is HERE, LEAVING or CONDEMNED, and stays where it is. Being computed is no state of a copy: pages belong to the request that
computes them until they are published.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier


class Life(IntEnum):
    """States in this order: from CONDEMNED on the copy has slots, from HERE on they may be read."""

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
"""The states that may follow each state."""


class Standing(IntEnum):
    """What keeps a device copy from being dropped. GONE: there is none. FREE: nothing. HELD: a lease, or a child that cannot be dropped.
    DIRTY: it must be copied down first."""

    GONE = 0
    FREE = 1
    HELD = 2
    DIRTY = 3


GONE, FREE, HELD, DIRTY = Standing


class IllegalTransition(Exception):
    """A copy was to change to a state that cannot follow its own: an error in the engine. The message names the copy and its locks."""


@dataclass(slots=True, eq=False)
class Pending:
    """A copy from `source` to `tier` under way, and the slots there that it is filling."""

    ticket: int
    source: Tier
    tier: Tier
    slots: Ints
