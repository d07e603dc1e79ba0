"""Tokens for prompts that a trace tells only as block ids.

    token(block, position) = base(conversation, block) + offset(conversation, position)

`base` maps the ids of a conversation one to one, so different blocks differ in their first token; `offset` steps by
an amount of the conversation's own, so blocks of two conversations that should meet in one token part at the next.
Equal ids give equal tokens.

A trace does not tell what was answered: its next prompt names the blocks that hold the answer and whatever followed,
in one. So the tokens that a replayed engine generates never come back in a prompt, and what it caches of them is
never asked for: as in the bound, only prompts count.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.replay.trace import Conversation

_SPACE = 1 << 29
_STEP = 0x1A2F_3B5D
"""Odd, so that multiplying by it permutes the numbers below `_SPACE`."""


@dataclass(frozen=True, slots=True)
class Text:
    """Prompts of a trace as token ids.

    seed   another seed, another text. vocab: token ids stay below it (for a real model; first tokens may then meet);
           None: below 2**31, each block's first token its own
    """

    seed: int = 0
    vocab: int | None = None

    def prompt(self, conversation: Conversation, stream: int, turn: int, edition: int = 0) -> Ints:
        """int32 [prompt] of one turn. A conversation played again in another `edition` shares nothing with the first.

        Costs about 0.1 ms per 100,000 tokens; nothing is kept.
        """
        told = conversation.streams[stream].turns[turn]
        origin, stride = self._key(conversation.id, edition)
        block = conversation.block
        offsets = ((np.arange(block, dtype=np.int64) * stride) % _SPACE).astype(np.int32)
        bases = ((told.ids() * np.int64(_STEP) + origin) % _SPACE).astype(np.int32)
        whole = min(len(bases) * block, told.prompt)
        out = np.empty(max(len(bases) * block, told.prompt), np.int32)
        np.add(bases[:, None], offsets, out=out[: len(bases) * block].reshape(-1, block))
        if rest := told.prompt - whole:
            own = (_ordinal(conversation, stream, turn) * _STEP + origin) % _SPACE
            np.add(offsets[:rest], np.int32(2 * _SPACE + own), out=out[whole:])
        tokens = out[: told.prompt]
        return tokens if self.vocab is None else _folded(tokens, self.vocab)

    def _key(self, name: str, edition: int) -> tuple[int, int]:
        digest = blake2b(f"{self.seed}/{edition}/{name}".encode(), digest_size=16).digest()
        return int.from_bytes(digest[:8], "little") % _SPACE, int.from_bytes(digest[8:], "little") % _SPACE | 1


def _ordinal(conversation: Conversation, stream: int, turn: int) -> int:
    """The request's number within its conversation."""
    return sum(len(s.turns) for s in conversation.streams[:stream]) + turn


def _folded(tokens: Ints, vocab: int) -> Ints:
    mixed = tokens.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(vocab)).astype(np.int32)
