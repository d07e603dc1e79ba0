"""The reference cache: exact, endless, and too simple to be wrong.

It remembers, block by block and salt by salt, every prefix whose KV was ever computed and every position at which a state was
ever kept. It forgets nothing, so it bounds what any cache may claim: the real one may reuse less, never more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepwell.base.geometry import Ints


@dataclass(slots=True)
class _Place:
    """The end of one block: what has been seen to follow it, and whether a state was kept there."""

    after: dict[bytes, _Place] = field(default_factory=dict)
    rung: bool = False


class Reference:
    """Prefixes in blocks of `block` tokens; salts share nothing."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._roots: dict[str, _Place] = {}

    def computed(self, salt: str, tokens: Ints, rungs: Iterable[int] = ()) -> None:
        """KV of all `tokens` exists from now on, and a state at each position of `rungs` (multiples of the block)."""
        places = self._walk(salt, tokens, grow=True)
        for position in rungs:
            index, rest = divmod(position, self._block)
            if rest or not 0 < index < len(places):
                raise ValueError(f"a rung at {position} is not the end of one of the {len(places) - 1} blocks")
            places[index].rung = True

    def reach(self, salt: str, tokens: Ints) -> int:
        """Tokens from the start, to the block, whose KV was ever computed under `salt`."""
        return (len(self._walk(salt, tokens)) - 1) * self._block

    def boundaries(self, salt: str, tokens: Ints) -> list[int]:
        """Every position below the last token from which a request for `tokens` may resume, 0 first."""
        places = self._walk(salt, tokens)
        ends = (i * self._block for i, place in enumerate(places) if i == 0 or place.rung)
        return [end for end in ends if end == 0 or end < len(tokens)]

    def _walk(self, salt: str, tokens: Ints, grow: bool = False) -> list[_Place]:
        """The root and the end of each whole block of `tokens` that is known."""
        root = self._roots.setdefault(salt, _Place()) if grow else self._roots.get(salt, _Place())
        places = [root]
        for start in range(0, len(tokens) - self._block + 1, self._block):
            key = tokens[start : start + self._block].tobytes()
            following = places[-1].after.get(key)
            if following is None:
                if not grow:
                    break
                following = places[-1].after[key] = _Place()
            places.append(following)
        return places
