"""Journal of what becomes readable in a tier and what does not any more, for routers of a fleet.

Blocks are named by chained digests, which can be computed from the tokens: SHA-256 over the CBOR form (RFC 8949) of
[digest of the block before, tokens of the block, null]. The first block has SHA-256 of the text "vllm-none-hash" before it, and under a
salt it says [["cache_salt", salt]] in place of null. That is vLLM's rule `sha256_cbor`.

Nothing is computed unless a journal is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from stepwell.cache.moves import Tier
from stepwell.cache.tree import DIGEST, TOKEN_BYTES, Item, Node, Root


def _head(kind: int, count: int) -> bytes:
    """What a text (kind 3) or list (kind 4) of fewer than 65,536 bytes or items begins with in CBOR."""
    if count < 24:
        return bytes([kind << 5 | count])
    return bytes([kind << 5 | 24, count]) if count < 256 else bytes([kind << 5 | 25, *count.to_bytes(2, "big")])


def _text(text: str) -> bytes:
    body = text.encode("utf-8", "surrogatepass")
    return _head(3, len(body)) + body


NOTHING = sha256(_text("vllm-none-hash")).digest()
"""Stands before the first block of every prompt."""


@dataclass(frozen=True, slots=True)
class Change:
    """Blocks of one path that have come to a tier or left it.

    rung     True: the state at the end of the one block named, not its KV
    stored   True: it has come; False: it has left
    digests  of the blocks, `DIGEST` bytes each, in order
    above    digest of the block before the first; empty if that begins the prompt
    tokens   of the blocks, int32, if they have come; else empty
    salt     of the path
    """

    tier: Tier
    rung: bool
    stored: bool
    digests: bytes
    above: bytes
    tokens: bytes
    salt: str


class Journal:
    """Changes since they were last taken, in order. Owns the digests that nodes carry."""

    __slots__ = ("_block", "_changes", "_rungs")

    def __init__(self, block: int, rungs: bool) -> None:
        """`block`: tokens of a block. `rungs`: whether states are noted; a model without recurrent layers has none."""
        self._block = block
        self._rungs = rungs
        self._changes: list[Change] = []

    def take(self) -> list[Change]:
        """What has changed since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def note(self, item: Item, tier: Tier, stored: bool) -> None:
        """Note that the copy of `item` in `tier` has become readable, or is no longer. O(blocks without a digest on the path)."""
        node = item.node
        if item.what == "kv":
            self._note(node, node.start, tier, stored)
        elif self._rungs:
            self._note(node, node.end - self._block, tier, stored, rung=True)

    def note_grown(self, node: Node, start: int, tier: Tier) -> None:
        """Note that `node` has grown from `start` on, in `tier`."""
        self._note(node, start, tier, stored=True)

    def _note(self, node: Node, start: int, tier: Tier, stored: bool, rung: bool = False) -> None:
        if node.end == 0:
            return  # the empty prefix
        salt = self._complete(node)
        first = (start - node.start) // self._block * DIGEST
        above = node.kv.digests[first - DIGEST : first] if first else _last(node.parent)
        tokens = node.raw[(start - node.start) * TOKEN_BYTES :] if stored else b""
        self._changes.append(Change(tier, rung, stored, node.kv.digests[first:], above, tokens, salt))

    def _complete(self, node: Node) -> str:
        """Compute missing digests on the path to `node`. Returns its salt."""
        path = list(node.up())
        root = path.pop()
        assert isinstance(root, Root)
        for above in reversed(path):
            have = len(above.kv.digests) // DIGEST
            if have < (above.end - above.start) // self._block:
                before = above.kv.digests[-DIGEST:] or _last(above.parent)
                tokens = above.raw[have * self._block * TOKEN_BYTES :]
                above.kv.digests += chain(before, tokens, self._block, root.salt)
        return root.salt


def chain(above: bytes, tokens: bytes, block: int, salt: str = "") -> bytes:
    """Digests of whole blocks of `tokens` (int32) behind a block with the digest `above`; empty where they begin a prompt under `salt`."""
    head = _head(4, block)
    found, last = bytearray(), above or NOTHING
    keys = b"\x81\x82" + _text("cache_salt") + _text(salt) if salt and not above else b"\xf6"
    for body in _numbers(np.frombuffer(tokens, np.int32), block):
        last = sha256(b"\x83\x58\x20" + last + head + body + keys).digest()
        found += last
        keys = b"\xf6"
    return bytes(found)


def _numbers(tokens: npt.NDArray[np.int32], block: int) -> list[bytes]:
    """Each block of tokens as numbers in CBOR, as short as they can be."""
    wide = tokens.astype(">u4").view(np.uint8).reshape(-1, 4)
    size = (tokens >= 24).astype(np.int64) + (tokens >= 1 << 8) + 2 * (tokens >= 1 << 16)  # bytes behind the first
    first = np.where(size == 0, tokens, np.array([0, 0x18, 0x19, 0, 0x1A])[size]).astype(np.uint8)
    rows = np.column_stack([first, wide])
    at = np.arange(5)
    rows = rows[(at == 0) | (at > 4 - size[:, None])]
    ends = np.cumsum(1 + size)[block - 1 :: block].tolist()
    text = rows.tobytes()
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _last(node: Node | None) -> bytes:
    """The digest of the last block of `node`."""
    return b"" if node is None else node.kv.digests[-DIGEST:]
