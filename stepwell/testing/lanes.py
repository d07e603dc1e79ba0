"""Lanes of a link without a device: for tests of whatever sends pieces."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

from stepwell.base.errors import StoreError
from stepwell.store.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Arrived:
    """What was sent, and is there."""

    seconds: float

    def arrived(self) -> bool:
        return True

    def wait(self) -> float:
        return self.seconds


@dataclass(slots=True)
class MemoryLane:
    """A lane that copies inside this process, at once. `sent` are the pieces of every call; `refusing` makes the next calls fail."""

    seconds: float = 0.0
    sent: list[Pieces] = field(default_factory=list)
    refusing: str = ""
    name: str = "memmove"

    def send(self, pieces: Pieces, then: Callable[[], None] | None = None) -> Arrived:
        if self.refusing:
            raise StoreError(self.refusing)
        self.sent.append(pieces)
        for target, source, size in zip(
            pieces.targets.tolist(), pieces.sources.tolist(), pieces.sizes.tolist(), strict=True
        ):
            ctypes.memmove(target, source, size)
        if then is not None:
            then()
        return Arrived(self.seconds)
