"""Who is judged: something that answers prompts, and says where their tokens came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Told: TypeAlias = Callable[[int], None]
"""Is told how many more prompts have been answered."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Tokens of prompts by where they came from. `cached` of a server that does not tell tiers stand under `device`."""

    prompt: int = 0
    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def cached(self) -> int:
        return self.device + self.host + self.disk

    def __add__(self, other: Sources) -> Sources:
        return Sources(
            self.prompt + other.prompt,
            self.device + other.device,
            self.host + other.host,
            self.disk + other.disk,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What followed one prompt.

    tokens     as ids, or as texts from a server; what two answers are compared by
    truncated  it ran into the limit
    loaded     bytes came from a lower tier for it; failed: such a load failed
    """

    text: str
    tokens: tuple[int | str, ...]
    truncated: bool
    sources: Sources
    loaded: bool = False
    failed: bool = False


class Subject(Protocol):
    """An engine or a server under judgement."""

    @property
    def name(self) -> str: ...

    def answer(self, prompts: Sequence[str], told: Told) -> list[Answer]:
        """What follows each prompt, greedily, in their order."""
        ...

    def between(self) -> None:
        """Called between two passes: see to it that the next one is served from the tier that is judged."""
        ...

    def failed_loads(self) -> int | None:
        """Loads that failed since the start; None where it is not known."""
        ...
