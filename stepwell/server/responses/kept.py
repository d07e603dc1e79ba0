"""Responses that a later call may continue, in memory and within a bound.

response 1:  turn a
response 2:  turn a, turn b       a turn is counted once, however many responses hold it,
response 3:  turn a, turn c       and goes with the last of them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Messages that one call added to a conversation, its answer included; `size` is that of their JSON in bytes."""

    messages: tuple[Message, ...]
    size: int

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Turn:
        return cls(tuple(messages), len(orjson.dumps(messages)))


@dataclass(frozen=True, slots=True)
class Stored:
    """A response as it was sent, and the conversation up to its end, without instructions."""

    body: bytes
    turns: tuple[Turn, ...]

    @property
    def messages(self) -> list[Message]:
        return [message for turn in self.turns for message in turn.messages]


class KeptResponses:
    """Responses by owner and id, `limit` bytes at most; those that nobody has asked for longest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored: dict[tuple[str, str], Stored] = {}  # the longest unasked first
        self._holders: Counter[Turn] = Counter()
        self.size = 0

    def __len__(self) -> int:
        return len(self._stored)

    def keep(self, owner: str, name: str, response: Stored) -> None:
        """Keep a response under a name of its own; one that is larger than the bound is not kept. O(turns)."""
        assert (owner, name) not in self._stored
        if len(response.body) + sum(turn.size for turn in response.turns) > self._limit:
            return
        self._stored[owner, name] = response
        self.size += len(response.body)
        for turn in response.turns:
            self.size += 0 if self._holders[turn] else turn.size
            self._holders[turn] += 1
        while self.size > self._limit:
            self.drop(*next(iter(self._stored)))

    def find(self, owner: str, name: str) -> Stored | None:
        """The response, which has now been asked for."""
        found = self._stored.pop((owner, name), None)
        if found is not None:
            self._stored[owner, name] = found
        return found

    def drop(self, owner: str, name: str) -> bool:
        """Forget a response; False where there is none. Those that continue it stay. O(turns)."""
        found = self._stored.pop((owner, name), None)
        if found is None:
            return False
        self.size -= len(found.body)
        for turn in found.turns:
            self._holders[turn] -= 1
            if not self._holders[turn]:
                del self._holders[turn]
                self.size -= turn.size
        return True

    def check(self) -> None:
        """Verify that what is counted is what is held."""
        held = Counter(turn for response in self._stored.values() for turn in response.turns)
        assert held == self._holders
        assert self.size == sum(len(r.body) for r in self._stored.values()) + sum(turn.size for turn in held)
        assert self.size <= self._limit
