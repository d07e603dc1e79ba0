"""API keys, compared in constant time, and the salt that belongs to each."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepwell.base.errors import ConfigError

MIN_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a call. `salt` is that of its key, or empty if all keys share one cache; `owner` always differs from key to key."""

    request_id: str
    salt: str = ""
    owner: str = ""

    def salted(self, named: str | None) -> str:
        """The salt of a call that names `named`: two keys never meet, whatever they name."""
        return f"{self.salt}:{named or ''}" if self.salt else named or ""


class Keys:
    """The keys of a server; none: everyone may call. They are kept as digests."""

    def __init__(self, keys: Sequence[str] = (), salt_per_key: bool = False, metrics_key: str | None = None) -> None:
        """`metrics_key` opens /metrics and nothing else; None: everyone may read it."""
        for key in keys:
            _expect_key(key, "--api-key")
        if metrics_key is not None:
            _expect_key(metrics_key, "--metrics-key")
        if salt_per_key and not keys:
            raise ConfigError("--salt-per-key needs at least one --api-key: give one, or leave it out")
        self._digests = tuple(dict.fromkeys(map(_digest, keys)))
        self._salted = salt_per_key
        self._metrics = None if metrics_key is None else _digest(metrics_key)

    @property
    def required(self) -> bool:
        return bool(self._digests)

    @property
    def owners(self) -> int:
        """How many keys there are; without any all callers are one."""
        return len(self._digests) or 1

    def owner(self, authorization: str | None, api_key: str | None = None) -> str | None:
        """The sender by the `Authorization` or `x-api-key` header; one is enough. None if no key matches."""
        if not self._digests:
            return ""
        for given in _given(authorization, api_key):
            found = [hmac.compare_digest(given, digest) for digest in self._digests]  # all of them, whichever fits
            if any(found):
                return given.hex()[:32]
        return None

    def may_read_metrics(self, authorization: str | None, api_key: str | None = None) -> bool:
        """Whether these headers open /metrics."""
        metrics = self._metrics
        return metrics is None or any(hmac.compare_digest(given, metrics) for given in _given(authorization, api_key))

    def salt_of(self, owner: str) -> str:
        """The salt of one whom `owner` has named."""
        return owner if self._salted else ""


def _expect_key(key: str, flag: str) -> None:
    if len(key) < MIN_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{flag} must have {MIN_LENGTH} printable characters or more and no space: choose another")


def _given(authorization: str | None, api_key: str | None) -> Iterator[bytes]:
    """Digests of what two headers bring."""
    scheme, _, bearer = (authorization or "").partition(" ")
    for key in (bearer if scheme.lower() == "bearer" else "", api_key or ""):
        yield _digest(key.strip())


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), person=b"stepwell key").digest()
