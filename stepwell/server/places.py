"""Where prompts of a conversation tend to part, read off their tokens.

system text and tools ─────────────────┐ user │ assistant │ … │ user │ (answer)
   −4,096     −1,024   −256 −64        ┘                      └ sent again, or otherwise
"""

from __future__ import annotations

import numpy as np

from stepwell.base.geometry import Ints

_BEFORE_END = (0, 64, 256, 1024, 4096)
"""Tokens before the end of what leads. There clients write what changes from one process to the next: the time, a repository's state."""


def places(ids: Ints, turn: int | None, led: bool) -> tuple[int, ...]:
    """Positions at which to leave a rung besides a prompt's end, ascending.

    turn  the token with which every message begins; None: it is not known
    led   the first message is what leads: system text, tools
    """
    if turn is None:
        return ()
    starts = np.flatnonzero(ids == turn)
    found = {int(start) for start in starts[-2:-1]}  # the last message, behind which the answer begins
    if led and len(starts) > 1:
        found |= {int(starts[1]) - before for before in _BEFORE_END}
    return tuple(sorted(place for place in found if place > 0))
