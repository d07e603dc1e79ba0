"""Causal attention over paged KV. Planned once a step, run once a layer.

    k_pages, v_pages   [pages, block, kv_heads, head_dim]: one layer's view into the arena, strided over the pages. Values may be narrower
                       than keys, and part of them

Query heads come in groups that share a KV head: query head h reads KV head h // (heads / kv_heads). Pages hold whatever was
there before beyond a sequence's end, NaN included: nothing here reads it into a sum.

New tokens are cut into tiles of up to 256 queries. Tiles of different sequences that are alike in size are padded to one and computed
together; a decode is a tile of one query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.ops.scaled import LARGEST

Longs: TypeAlias = npt.NDArray[np.int64]
Index = TypeVar("Index", Longs, Tensor)

_TILE = 256
"""Most queries that share one mask; larger tiles compute more of what the mask hides."""
_WASTE = 1.5
"""What padding may cost: work done over work asked for. A decode is short: there it may be twice and a few pages."""
_SLACK = 8
"""Pages by which decodes of one group may always differ."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries `first` … `first + rows − 1` of the batch; the last of them is token `end − 1` of sequence `sequence`."""

    sequence: int
    first: int
    rows: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class TileGroup:
    """Tiles padded to one number of queries and of pages.

    rows    int64 [tiles · queries]: their queries in the batch, the last one repeated as padding; None: all of the batch, in order
    pages   int64 [tiles · width], padded with pages of the same sequence
    tiles   how many; `queries` of each
    length  tokens to keep of the padded width (the longest tile's)
    hidden  int64 flat token indices beyond a tile's end; None where all lengths are equal
    mask    [tiles, 1, heads of a KV head · queries, length], −∞ where a query does not see a token; None where all see all
    """

    rows: Tensor | None
    pages: Tensor
    tiles: int
    queries: int
    length: int
    hidden: Tensor | None
    mask: Tensor | None

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor:
        """q [tiles · queries, heads, head_dim] → [tiles · queries, heads, numbers of a value]."""
        count, heads, dim = q.shape
        kv_heads, wide = k_pages.shape[2], v_pages.shape[3]
        k, v = (pages.index_select(0, self.pages).flatten(0, 1).to(q.dtype) for pages in (k_pages, v_pages))
        if self.hidden is not None:
            # masked is not enough: 0 · NaN is NaN
            k.index_fill_(0, self.hidden, 0)
            v.index_fill_(0, self.hidden, 0)
        k, v = (y.view(self.tiles, -1, kv_heads, y.shape[-1])[:, : self.length].transpose(1, 2) for y in (k, v))
        # the heads of a group become rows: each KV head is read once
        if self.queries == 1:
            rows = q.reshape(self.tiles, kv_heads, -1, dim)
            return F.scaled_dot_product_attention(rows, k, v, attn_mask=self.mask).reshape(count, heads, wide)
        grouped = (self.tiles, self.queries, kv_heads, heads // kv_heads, dim)
        rows = q.reshape(grouped).permute(0, 2, 3, 1, 4).reshape(self.tiles, kv_heads, -1, dim)
        out = F.scaled_dot_product_attention(rows, k, v, attn_mask=self.mask)
        return out.unflatten(2, (-1, self.queries)).permute(0, 3, 1, 2, 4).reshape(count, heads, wide)  # type: ignore[no-untyped-call,no-any-return]


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Attention of the new tokens of several sequences over all their tokens so far."""

    groups: tuple[TileGroup, ...]

    @classmethod
    def plan(
        cls,
        tables: Sequence[Ints],
        starts: Sequence[int],
        counts: Sequence[int],
        block: int,
        share: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> PagedAttention:
        """The queries of sequence i stand at positions starts[i] … starts[i] + counts[i] − 1, and `tables[i]` is its block table.

        share   query heads of each KV head; dtype: the queries' type
        """
        parts = _groups(_tiles(starts, counts), block)
        total = sum(counts)
        return cls(tuple(_plan_group(part, tables, block, share, device, dtype, total) for part in parts))

    def __call__(self, q: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor:
        """q [rows, heads, head_dim] → [rows, heads, numbers of a value]."""
        first = self.groups[0]
        if first.rows is None:
            return first.attend(q, k_pages, v_pages)
        out = q.new_empty(*q.shape[:2], v_pages.shape[3])
        for group in self.groups:
            assert group.rows is not None
            # a padding query repeats a real one, and writes the same result to the same place
            out.index_copy_(0, group.rows, group.attend(q.index_select(0, group.rows), k_pages, v_pages))
        return out


def places(page: Index, offset: Index, k_pages: Tensor) -> Index:
    """Where `write_kv` stores tokens that belong at `offset` of `page`: the same in all layers of an arena."""
    return page * (k_pages.stride(0) // k_pages.stride(1)) + offset


def write_kv(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, place: Tensor) -> None:
    """Store keys and values [n, kv_heads, head_dim] of n tokens at their `places`, int64 [n].

    Pages of e4m3 take values as they are, clamped to its largest: it has no infinity, and what is larger would become NaN.
    """
    write_rows(k, k_pages, place)
    write_rows(v, v_pages, place)


def write_rows(x: Tensor, pages: Tensor, place: Tensor) -> None:
    """The same for keys, values or latents alone."""
    if pages.dtype == torch.float8_e4m3fn:  # copied as bytes: no operation of this kind knows the type
        x, pages = x.clamp(-LARGEST, LARGEST).to(pages.dtype).view(torch.uint8), pages.view(torch.uint8)
    _rows(pages).index_copy_(0, place, x.to(pages.dtype).flatten(1))


def _rows(pages: Tensor) -> Tensor:
    """All tokens that lie between those of one layer as well, one a row."""
    width = pages.stride(1)
    between = pages.stride(0) // width
    return pages.as_strided(((pages.shape[0] - 1) * between + pages.shape[1], width), (width, 1))


def _tiles(starts: Sequence[int], counts: Sequence[int]) -> list[list[Tile]]:
    """Round i holds the i-th tile of every sequence that has one; tiles of one sequence see too unequal lengths to be padded to one."""
    rounds: list[list[Tile]] = []
    first = 0
    for sequence, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for i, at in enumerate(range(0, count, _TILE)):
            rows = min(_TILE, count - at)
            if i == len(rounds):
                rounds.append([])
            rounds[i].append(Tile(sequence, first + at, rows, start + at + rows))
        first += count
    return rounds


def _groups(rounds: Sequence[Sequence[Tile]], block: int) -> list[list[Tile]]:
    """Tiles to compute together, in the order of the batch within a group."""
    groups: list[list[Tile]] = []
    for tiles in rounds:
        open_one: list[Tile] = []
        for tile in sorted(tiles, key=lambda t: (t.rows > 1, t.end, t.rows)):
            if open_one and not _alike(open_one, tile, block):
                groups.append(open_one)
                open_one = []
            open_one.append(tile)
        groups.append(open_one)
    return [sorted(group, key=lambda t: t.first) for group in groups]


def _alike(group: Sequence[Tile], tile: Tile, block: int) -> bool:
    """Whether a longer tile may join the group."""
    if tile.rows == 1 or group[0].rows == 1:
        return tile.rows == group[0].rows and tile.end <= 2 * group[0].end + _SLACK * block
    every = (*group, tile)
    padded = max(t.rows for t in every) * tile.end * len(every)
    return padded <= _WASTE * sum(t.rows * t.end for t in every)


def _plan_group(
    tiles: Sequence[Tile],
    tables: Sequence[Ints],
    block: int,
    share: int,
    device: torch.device,
    dtype: torch.dtype,
    total: int,
) -> TileGroup:
    queries, length = max(t.rows for t in tiles), max(t.end for t in tiles)
    width = -(-length // block)
    # no padding and nobody else: tiles are in the order of the batch
    whole = len(tiles) * queries == sum(t.rows for t in tiles) == total
    even = min(t.end for t in tiles) == length
    return TileGroup(
        rows=None if whole else _long((_column(t.first for t in tiles) + _within(tiles, queries)).reshape(-1), device),
        pages=_long(_pages(tiles, tables, width, block), device),
        tiles=len(tiles),
        queries=queries,
        length=length,
        hidden=None if even else _long(_beyond(tiles, width * block), device),
        mask=None if queries == 1 and even else _mask(tiles, queries, length, share, device, dtype),
    )


def _pages(tiles: Sequence[Tile], tables: Sequence[Ints], width: int, block: int) -> np.ndarray:
    """`width` pages of each tile, padded with the first page of its sequence, [tiles · width]."""
    if len(tiles) == 1:
        return tables[tiles[0].sequence][:width]
    pages = np.empty((len(tiles), width), np.int64)
    for row, tile in enumerate(tiles):
        used, table = -(-tile.end // block), tables[tile.sequence]
        pages[row, :used] = table[:used]
        pages[row, used:] = table[0]
    return pages.reshape(-1)


def _within(tiles: Sequence[Tile], queries: int) -> Longs:
    """Which query of its tile each of `queries` is, [tiles, queries]; padding repeats the last one."""
    within: Longs = np.minimum(np.arange(queries), _column(t.rows for t in tiles) - 1)
    return within


def _beyond(tiles: Sequence[Tile], width: int) -> Longs:
    """Flat indices of the tokens behind each tile's end, of `width` each."""
    return np.flatnonzero(np.arange(width) >= _column(t.end for t in tiles))


def _column(values: Iterable[int]) -> Longs:
    return np.array([[value] for value in values], np.int64)


def _mask(
    tiles: Sequence[Tile], queries: int, length: int, share: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """0 where a query sees a token and −∞ where it does not; the queries once for each head that shares a KV head."""
    position = _column(t.end - t.rows for t in tiles) + _within(tiles, queries)
    last = _long(position, device)[:, None, :, None]
    beyond = torch.arange(length, device=device) > last
    mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, float("-inf"))
    return mask.repeat(1, 1, share, 1)


def _long(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)
