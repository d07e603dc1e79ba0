"""Names of cached content that outlives the process: chained, keyed digests in place of tokens.

    D(0) = blake3(key, salt)      D(p) = blake3(D(q) ‖ tokens[q, p)),  q the last chunk boundary before p

So D(p) depends on the salt and on all of [0, p), not on how it is cut into records, and is computed from the digest of the chunk before
it alone. Without the key, which the store draws at random and binds to model and layout, nobody can test guesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from blake3 import blake3

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Name

DIGEST = 16
"""Bytes of a digest. Keyed, so that a collision cannot be prepared; 2⁻¹²⁸ for any two prompts."""


@dataclass(frozen=True, slots=True)
class Names:
    """The rule for one namespace. `key` is 32 bytes; `chunk` tokens lie between two links of the chain."""

    key: bytes
    chunk: int

    def root(self, salt: str) -> bytes:
        """The digest of the empty prefix."""
        return blake3(salt.encode(), key=self.key).digest(DIGEST)

    def trail(self, salt: str, tokens: Ints) -> Trail:
        """Digests of the prefixes of `tokens`."""
        return Trail(self, self.root(salt), tokens)


class Trail:
    """Digests along one token sequence. Each chunk is hashed once, when first needed: about a microsecond."""

    __slots__ = ("_links", "_names", "_tokens")

    def __init__(self, names: Names, root: bytes, tokens: Ints) -> None:
        self._names = names
        self._tokens = tokens
        self._links = [root]

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def root(self) -> bytes:
        return self._links[0]

    def at(self, position: int) -> bytes:
        """The digest of the first `position` tokens."""
        assert 0 <= position <= len(self._tokens), f"{position} of {len(self._tokens)} tokens"
        if position == 0:
            return self._links[0]
        chunk = self._names.chunk
        link = (position - 1) // chunk
        while len(self._links) <= link:
            end = len(self._links) * chunk
            self._links.append(self._digest(self._links[-1], end - chunk, end))
        return self._digest(self._links[link], link * chunk, position)

    def image(self, position: int) -> Name:
        """The name of the image that has folded `position` tokens."""
        digest = self.at(position)
        return Name(self.root, digest, digest, position, position)

    def records(self, start: int, end: int) -> Iterator[Name]:
        """The names of KV [start, end), cut at every chunk boundary."""
        while start < end:
            stop = min(end, (start // self._names.chunk + 1) * self._names.chunk)
            yield Name(self.root, self.at(start), self.at(stop), start, stop)
            start = stop

    def _digest(self, link: bytes, start: int, end: int) -> bytes:
        return blake3(link + self._tokens[start:end].astype("<i4").tobytes()).digest(DIGEST)


def root_number(salt: str) -> int:
    """A number for `salt` that test models mix into what they compute. Nothing is looked up by it."""
    return crc32(salt.encode())


def tenant_of(salt: str) -> str:
    """The tenant of a salt: the part before its first colon. Salts of an API key are named below the key."""
    return salt.partition(":")[0]
