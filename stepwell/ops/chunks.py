"""How the tokens of several sequences are divided into the chunks of the delta rule.

    sequence a   ▐ 0 │ 1 │ 2 ▌          chunks end on multiples of 64 of the position, at cuts, and with the sequence
    sequence b   ▐ 0 │ 1 ▌
    sequence c   ▐ 0 ▌                  waves:  a0 b0 c0 │ a1 b1 │ a2

A wave holds the i-th chunk of every sequence that has one, the sequence with most chunks first: the states that move on from wave
to wave are always the first ones of the wave before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
# Chunks × heads worked on at once: enough to keep the cores busy while the intermediates stay in cache (on a GPU: in memory).
_AT_ONCE_CPU = 128
_AT_ONCE_GPU = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Handed:
    """States that a group of waves hands out: after chunk `chunks[i]` of the group, to place `sequences[i]`. int64 [n] each."""

    chunks: Tensor
    sequences: Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Waves that are computed at once.

    part    their chunks among all
    waves   chunks in each, never more than in the one before
    ended   states after the last chunks of sequences, by place in sorted order; None where none ends here
    cut     states at cuts, by the cut's number; None where there is none here
    """

    part: slice
    waves: tuple[int, ...]
    ended: Handed | None
    cut: Handed | None


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """A division of the tokens of a batch. `rows` [n] int64: the place of each token among padded chunks; None where tokens lie as they
    are and only the last chunk is padded. `order` [sequences] int64: the sequences, those with most chunks first; None for one."""

    count: int
    rows: Tensor | None
    order: Tensor | None
    groups: tuple[Group, ...]

    @classmethod
    def plan(
        cls,
        starts: Sequence[int],
        counts: Sequence[int],
        cuts: Sequence[tuple[int, int]],
        heads: int,
        device: torch.device,
    ) -> Chunks:
        """`counts[i]` tokens of sequence i from position `starts[i]` on; `cuts` as (sequence, its tokens before the cut)."""
        own: list[list[int]] = [[] for _ in counts]
        for sequence, after in cuts:
            own[sequence].append(after)
        ends = [chunk_ends(start, count, at) for start, count, at in zip(starts, counts, own, strict=True)]
        order = sorted(range(len(counts)), key=lambda i: -len(ends[i]))
        place = {sequence: i for i, sequence in enumerate(order)}
        waves = [sum(len(e) > i for e in ends) for i in range(len(ends[order[0]]))]
        firsts = np.concatenate(([0], np.cumsum(waves)))
        numbers = [[int(firsts[i]) + place[s] for i in range(len(ends[s]))] for s in range(len(counts))]
        ended = [(numbers[s][-1], place[s]) for s in range(len(counts))]
        cut = [(numbers[s][ends[s].index(after)], i) for i, (s, after) in enumerate(cuts)]
        most = max(1, (_AT_ONCE_CPU if device.type == "cpu" else _AT_ONCE_GPU) // heads)
        groups = tuple(_group(part, waves, firsts, ended, cut, device) for part in _parts(waves, most))
        rows = None if len(counts) == 1 and _whole(ends[0]) else _long(_rows(ends, numbers), device)
        return cls(int(firsts[-1]), rows, None if len(counts) == 1 else _long(np.array(order), device), groups)

    def pad(self, x: Tensor) -> Tensor:
        """Tokens [n, …] as [chunks, 64, …]. Padding is zero: with k, β and g zero, a token changes nothing."""
        size = self.count * CHUNK
        if self.rows is not None:
            x = x.new_zeros(size, *x.shape[1:]).index_copy_(0, self.rows, x)
        elif x.shape[0] < size:
            x = F.pad(x, (0, 0) * (x.ndim - 1) + (0, size - x.shape[0]))
        return x.reshape(self.count, CHUNK, *x.shape[1:])

    def unpad(self, padded: Tensor, count: int) -> Tensor:
        """The `count` tokens out of [chunks · 64, …]."""
        return padded[:count] if self.rows is None else padded.index_select(0, self.rows)

    def sort(self, states: Tensor) -> Tensor:
        """States in batch order, those with most chunks first."""
        return states if self.order is None else states.index_select(0, self.order)

    def unsort(self, states: Tensor) -> Tensor:
        """The way back."""
        return states if self.order is None else torch.empty_like(states).index_copy_(0, self.order, states)


def chunk_ends(start: int, count: int, cuts: Sequence[int]) -> list[int]:
    """Token counts at which chunks end: where the position is a multiple of 64, at each cut, and at the end.

    >>> chunk_ends(100, 100, [60])
    [28, 60, 92, 100]
    """
    grid = range(CHUNK - start % CHUNK, count, CHUNK)
    return sorted({*grid, *cuts, count})


def _whole(ends: Sequence[int]) -> bool:
    """Whether every chunk but the last is full: then rows need no rearranging."""
    return all(end == CHUNK * i for i, end in enumerate(ends[:-1], 1))


def _rows(ends: Sequence[Sequence[int]], numbers: Sequence[Sequence[int]]) -> np.ndarray:
    """For each token its row among the padded chunks; chunk i of sequence s is number `numbers[s][i]`."""
    parts = [
        np.arange(end - begin) + CHUNK * number
        for own, chunk in zip(ends, numbers, strict=True)
        for begin, end, number in zip([0, *own], own, chunk, strict=False)
    ]
    return np.concatenate(parts)


def _parts(waves: Sequence[int], most: int) -> list[range]:
    """Consecutive waves in parts of at most `most` chunks, at least one wave in each."""
    parts, first, size = [], 0, 0
    for i, count in enumerate(waves):
        if size and size + count > most:
            parts.append(range(first, i))
            first, size = i, 0
        size += count
    return [*parts, range(first, len(waves))]


def _group(
    part: range,
    waves: Sequence[int],
    firsts: np.ndarray,
    ended: Sequence[tuple[int, int]],
    cut: Sequence[tuple[int, int]],
    device: torch.device,
) -> Group:
    first, end = int(firsts[part.start]), int(firsts[part.stop])

    def handed(places: Sequence[tuple[int, int]]) -> Handed | None:
        mine = [(chunk - first, place) for chunk, place in places if first <= chunk < end]
        if not mine:
            return None
        chunks, sequences = _long(np.array(mine).T, device)
        return Handed(chunks, sequences)

    return Group(slice(first, end), tuple(waves[i] for i in part), handed(ended), handed(cut))


def _long(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(device)
