"""Where prompts of a conversation tend to part, read off their tokens.

tools │ system text ───────────────────┐ user │ assistant │ … │ user │ (answer)
      │    −4,096   −1,024   −256 −64  ┘                      └ sent again, or otherwise
      └ parts: see `heads`
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.base.geometry import Ints

_BEFORE_END = (0, 64, 256, 1024, 4096)
"""Tokens before the end of what leads. There clients write what changes from one process to the next: the time, a repository's state."""


def places(ids: Ints, turn: int, led: bool, inner: Sequence[int] = ()) -> tuple[int, ...]:
    """Positions at which to leave a rung besides a prompt's end, ascending.

    turn   the token with which every message begins
    led    the first message is what leads: system text, tools
    inner  tokens within what leads at which its parts begin
    """
    starts = np.flatnonzero(ids == turn)
    found = {int(start) for start in starts[-2:-1]}  # the last message, behind which the answer begins
    if led and len(starts) > 1:
        end = int(starts[1])
        found |= {end - before for before in _BEFORE_END}
        found |= {place for place in inner if place < end}
    return tuple(sorted(place for place in found if place > 0))
