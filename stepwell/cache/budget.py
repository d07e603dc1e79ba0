"""How much may be written to disk in a while: a bucket that fills at a steady rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """`rate` pages a second, up to `burst` saved up. One batch may overdraw it; the next then waits."""

    rate: float = float("inf")
    burst: float = float("inf")
    level: float = 0.0
    at: float = 0.0

    def allows(self, now: float) -> bool:
        """Whether anything may be written now."""
        return self.rate == float("inf") or self._level(now) > 0

    def spend(self, pages: int, now: float) -> None:
        """`pages` are being written."""
        if self.rate != float("inf"):
            self.level, self.at = self._level(now) - pages, now

    def _level(self, now: float) -> float:
        return min(self.burst, self.level + self.rate * max(0.0, now - self.at))
