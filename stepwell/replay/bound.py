"""What an infinite cache would have reused: the yardstick for every real one.

Per conversation one set of the blocks seen so far, over root and sub-agents as the requests were sent. A request's
share is the longest leading run of its blocks that are in the set; then all its blocks go in. Other conversations
count for nothing, nor do answers: only prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from stepwell.replay.trace import Conversation, Run, Turn


class Marks:
    """A growing set of small ids, marked and tested a run at a time. O(ids of the run), a byte an id."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits: npt.NDArray[np.bool_] = np.zeros(1024, np.bool_)

    def leading(self, runs: Sequence[Run]) -> int:
        """How many ids at the front of `runs` are marked."""
        total = 0
        for first, count in runs:
            part = self._bits[first : first + count]
            if not part.all():
                return total + int(part.argmin())
            total += len(part)
            if len(part) < count:
                break
        return total

    def last(self, runs: Sequence[Run], within: int) -> int:
        """Length of the longest front of `runs`, at most `within` ids, that ends in a marked one; 0 if none does."""
        best = total = 0
        for first, count in runs:
            part = self._bits[first : first + min(count, within - total)]
            if len(found := np.flatnonzero(part)):
                best = total + int(found[-1]) + 1
            total += count
            if total >= within:
                break
        return best

    def add(self, runs: Sequence[Run]) -> None:
        for first, count in runs:
            if first + count > len(self._bits):
                more = max(first + count, 2 * len(self._bits)) - len(self._bits)
                self._bits = np.concatenate([self._bits, np.zeros(more, np.bool_)])
            self._bits[first : first + count] = True


class Bound:
    """The bound of the requests that it is told of, in the order in which they were sent."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], Marks] = {}

    def add(self, conversation: Conversation, turn: Turn, edition: int = 0) -> int:
        """Tokens of this prompt that an infinite cache would have had; at most the prompt less its last token."""
        seen = self._seen.setdefault((edition, conversation.id), Marks())
        tokens = min(seen.leading(turn.runs) * conversation.block, turn.prompt - 1)
        seen.add(turn.runs)
        return tokens


def excess_prefill(recomputed: int, prompt: int, bound: int) -> float:
    """Share of prefill beyond what the bound needs, recomputed ÷ (prompt − bound) − 1; all in tokens."""
    return recomputed / (prompt - bound) - 1 if prompt > bound else 0.0


def share(conversations: Iterable[Conversation]) -> float:
    """The bound of whole conversations, as a share of their prompt tokens; every request in its recorded order."""
    bound = Bound()
    hit = total = 0
    for conversation in conversations:
        for stream, index in conversation.in_time_order():
            turn = conversation.streams[stream].turns[index]
            hit += bound.add(conversation, turn)
            total += turn.prompt
    return hit / total if total else 0.0


def share_with_rungs(
    conversations: Iterable[Conversation],
    *,
    prompt_end: bool = True,
    interval: int | None = None,
    branches: bool = False,
) -> float:
    """The same with unlimited memory, but resuming only where a rung was left.

    prompt_end   at the last block boundary below each prompt's end
    interval     every so many tokens
    branches     where a prompt left what had been seen
    """
    hit = total = 0
    for conversation in conversations:
        block, seen, rungs = conversation.block, Marks(), Marks()
        for stream, index in conversation.in_time_order():
            turn = conversation.streams[stream].turns[index]
            reach = min(seen.leading(turn.runs), (turn.prompt - 1) // block)
            resumed = rungs.last(turn.runs, reach)
            if interval is not None:
                resumed = max(resumed, reach * block // interval * interval // block)
            hit += resumed * block
            total += turn.prompt
            seen.add(turn.runs)
            if prompt_end:
                rungs.add(_block_at(turn, (turn.prompt - 1) // block))
            if branches:
                rungs.add(_block_at(turn, reach))
    return hit / total if total else 0.0


def _block_at(turn: Turn, end: int) -> tuple[Run, ...]:
    """The id of the block that ends a front of `end` blocks, as a run; none where `end` is 0 or past the ids."""
    for first, count in turn.runs:
        if 0 < end <= count:
            return ((first + end - 1, 1),)
        end -= count
    return ()
