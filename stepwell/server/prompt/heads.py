"""Where the beginning of a prompt is put together: from tools, and from system messages that were merged.

    tools: a │ b │ c │ … ║ first system message │ second │ … ┘ user …

A sub-agent shows fewer tools, and a client that has compacted its history says less in front of it: such prompts part from others there.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from stepwell.engine.text.tokenizer import Tokenizer

APART = 512
"""Tokens between two of these places, at least."""
MOST = 16
"""Places of one beginning; where there are more, they lie further apart."""
_REMEMBERED = 256
_OPENING = 64  # characters of a text by which it is found


class Heads:
    """Remembers the last beginnings: a client sends its own with every call. Safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def parts(self, head: str, tools: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> tuple[int, ...]:
        """Tokens of `head` at which a tool or one of `texts` begins, `MOST` at most, ascending.

        head   the prompt up to the end of what leads       texts  of its system messages, in their order
        O(len(head)) for finding them; a head that is new is tokenized.
        """
        cuts = sorted(set(_cuts(head, tools, texts)))
        name = hashlib.blake2b(
            "\0".join((head, *map(str, cuts))).encode("utf-8", "surrogatepass"), digest_size=16
        ).digest()
        with self._lock:
            known = self._known.get(name)
        if known is None:
            known = spread(self._tokens(head, cuts))
            with self._lock:
                self._known[name] = known
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return known

    def _tokens(self, head: str, cuts: Sequence[int]) -> list[int]:
        """How many tokens come before each of `cuts`, which are places between words."""
        pieces = [head[start:end] for start, end in pairwise((0, *cuts))]
        return list(accumulate(len(self._tokenizer.encode(piece, special=False)) for piece in pieces))


def spread(places: Sequence[int]) -> tuple[int, ...]:
    """Those of ascending `places` that lie `APART` from the one before, or further where they would be more than `MOST`."""
    apart = APART
    while True:
        kept = [0]
        for place in places:
            if place >= kept[-1] + apart:
                kept.append(place)
        if len(kept) <= MOST + 1:
            return tuple(kept[1:])
        apart *= 2


def _cuts(head: str, tools: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> Iterator[int]:
    """Characters at which they begin. What a template writes otherwise is not found, and has no place."""
    at = 0
    for tool in tools:
        name = (tool.get("function") or tool).get("name")
        found = head.find(f'"{name}"', at)
        if found < 0:
            continue
        line = head.rfind("\n", at, found) + 1  # 0: it stands on the line of the one before, or begins the text
        at = found + 1
        yield line or found
    for text in texts:
        found = head.find(text.strip()[:_OPENING], at) if text.strip() else -1
        if found >= 0:
            at = found + 1
            yield found
