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
    """Responses by owner and id, `limit` bytes at most.

    Where there is no room, whoever holds most gives up the response that it has not asked for longest: a key that stores much displaces
    nothing of a key that stores little. Turns belong to one owner, as conversations do.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored: dict[str, dict[str, Stored]] = {}  # by owner; of each the longest unasked first
        self._holders: Counter[Turn] = Counter()
        self._sizes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._stored.values()))

    @property
    def size(self) -> int:
        """Bytes of all responses. O(owners)."""
        return self._sizes.total()

    def keep(self, owner: str, name: str, response: Stored) -> None:
        """Keep a response under a name of its own; one that is larger than the bound is not kept. O(turns + owners)."""
        mine = self._stored.setdefault(owner, {})
        assert name not in mine
        if len(response.body) + sum(turn.size for turn in response.turns) <= self._limit:
            mine[name] = response
            self._sizes[owner] += len(response.body)
            for turn in response.turns:
                self._sizes[owner] += 0 if self._holders[turn] else turn.size
                self._holders[turn] += 1
        while self.size > self._limit:
            greediest = max(self._sizes, key=self._sizes.__getitem__)
            self.drop(greediest, next(iter(self._stored[greediest])))
        self._forget_if_empty(owner)

    def find(self, owner: str, name: str) -> Stored | None:
        """The response, which has now been asked for."""
        mine = self._stored.get(owner, {})
        found = mine.pop(name, None)
        if found is not None:
            mine[name] = found
        return found

    def drop(self, owner: str, name: str) -> bool:
        """Forget a response; False where there is none. Those that continue it stay. O(turns)."""
        found = self._stored.get(owner, {}).pop(name, None)
        if found is None:
            return False
        self._sizes[owner] -= len(found.body)
        for turn in found.turns:
            self._holders[turn] -= 1
            if not self._holders[turn]:
                del self._holders[turn]
                self._sizes[owner] -= turn.size
        self._forget_if_empty(owner)
        return True

    def _forget_if_empty(self, owner: str) -> None:
        if not self._stored.get(owner, True):
            del self._stored[owner], self._sizes[owner]

    def check(self) -> None:
        """Assert that the counts match the kept responses."""
        for owner, mine in self._stored.items():
            held = {turn for response in mine.values() for turn in response.turns}
            assert self._sizes[owner] == sum(len(r.body) for r in mine.values()) + sum(turn.size for turn in held)
        everything = [response for mine in self._stored.values() for response in mine.values()]
        assert self._holders == Counter(turn for response in everything for turn in response.turns)
        assert set(self._sizes) <= set(self._stored) and all(self._stored.values())
        assert self.size <= self._limit
