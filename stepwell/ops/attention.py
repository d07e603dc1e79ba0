"""Causal attention over paged KV. Planned once a step, run once a layer.

    k_pages, v_pages   [pages, block, kv_heads, head_dim]: one layer's view into the arena, strided over the pages. Values may be narrower
                       than keys, and part of them

Query heads come in groups that share a KV head: query head h reads KV head h // (heads / kv_heads). Pages hold whatever was
there before beyond a sequence's end, NaN included: nothing here reads it into a sum.

New tokens are cut into tiles of up to 256 queries. Tiles of different sequences that are alike in size are padded to one and computed
together; a decode is a tile of one query.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    mask    [tiles, 1, heads of a KV head · queries, length], −∞ where a query does not see a token; [1, 1, queries, length] of one tile
            alone; None where all see all
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
        if self.tiles == 1:
            # KV heads as a batch: neither keys nor the mask are there once for each head that reads them
            rows = q.view(self.queries, kv_heads, -1, dim).permute(1, 2, 0, 3)
            k, v = (y[0].unsqueeze(1).expand(-1, heads // kv_heads, -1, -1) for y in (k, v))
            out = F.scaled_dot_product_attention(rows, k, v, attn_mask=self.mask)
            return out.permute(2, 0, 1, 3).reshape(count, heads, wide)
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
        total = sum(counts)
        if total == len(counts) and _may_share(min(starts) + 1, max(starts) + 1, block):
            return cls((_plan_decodes(tables, starts, block, device, dtype),))
        parts = _groups(_tiles(starts, counts), block)
        alone = [part[0] for part in parts if len(part) == 1 and part[0].rows > 1]
        stairs = _Stairs.over(alone, device, dtype) if alone else None
        return cls(tuple(_plan_group(part, tables, block, share, device, dtype, total, stairs) for part in parts))

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


@dataclass(frozen=True, slots=True, eq=False)
class _Stairs:
    """Masks of tiles that are alone, all views of one tensor, since they differ by a shift:

    ▁▁▁▁▁▁│██████    row i hides what is behind column `last` + i; of a tile whose first query stands at position p,
    ▁▁▁▁▁▁▁│█████    token j is column `last` − p + j
    """

    last: int
    hidden: Tensor

    @classmethod
    def over(cls, tiles: Sequence[Tile], device: torch.device, dtype: torch.dtype) -> _Stairs:
        last, rows = max(t.end - t.rows for t in tiles), max(t.rows for t in tiles)
        hidden = torch.full((rows, last + rows), float("-inf"), dtype=dtype, device=device)
        return cls(last, hidden.triu_(last + 1))

    def mask(self, tile: Tile) -> Tensor:
        """[1, 1, queries, tokens]: 0 where a query of `tile` sees a token and −∞ where it does not."""
        first = self.last - (tile.end - tile.rows)
        return self.hidden[None, None, : tile.rows, first : first + tile.end]


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
        return tile.rows == group[0].rows and _may_share(group[0].end, tile.end, block)
    every = (*group, tile)
    padded = max(t.rows for t in every) * tile.end * len(every)
    return padded <= _WASTE * sum(t.rows * t.end for t in every)


def _may_share(shortest: int, longest: int, block: int) -> bool:
    """Whether decodes of so many tokens may be padded to one length."""
    return longest <= 2 * shortest + _SLACK * block


def _plan_decodes(
    tables: Sequence[Ints], starts: Sequence[int], block: int, device: torch.device, dtype: torch.dtype
) -> TileGroup:
    """One query a sequence, all in one group: most steps are nothing else, and make no tiles."""
    ends = [start + 1 for start in starts]
    length = max(ends)
    width, even = -(-length // block), min(ends) == length
    return TileGroup(
        rows=None,
        pages=_long(_pages(tables, ends, width, block), device),
        tiles=len(ends),
        queries=1,
        length=length,
        hidden=None if even else _long(_beyond(ends, width * block), device),
        mask=None if even else _mask(_column(starts), length, 1, device, dtype),
    )


def _plan_group(
    tiles: Sequence[Tile],
    tables: Sequence[Ints],
    block: int,
    share: int,
    device: torch.device,
    dtype: torch.dtype,
    total: int,
    stairs: _Stairs | None,
) -> TileGroup:
    queries, ends = max(t.rows for t in tiles), [t.end for t in tiles]
    length, own = max(ends), [tables[t.sequence] for t in tiles]
    width, even = -(-length // block), min(ends) == length
    # no padding and nobody else: tiles are in the order of the batch
    whole = len(tiles) * queries == sum(t.rows for t in tiles) == total
    within = _within(tiles, queries)
    if queries == 1 and even:
        mask = None
    elif len(tiles) == 1:
        assert stairs is not None, "they are made for every tile that is alone"
        mask = stairs.mask(tiles[0])
    else:
        position = _column([t.end - t.rows for t in tiles]) + within
        mask = _mask(position, length, share, device, dtype)
    return TileGroup(
        rows=None if whole else _long((_column([t.first for t in tiles]) + within).reshape(-1), device),
        pages=_long(_pages(own, ends, width, block), device),
        tiles=len(tiles),
        queries=queries,
        length=length,
        hidden=None if even else _long(_beyond(ends, width * block), device),
        mask=mask,
    )


def _pages(tables: Sequence[Ints], ends: Sequence[int], width: int, block: int) -> np.ndarray:
    """`width` pages of each sequence of `ends[i]` tokens, padded with its first page, [sequences · width]."""
    if len(tables) == 1:
        return tables[0][:width]
    pages = np.empty((len(tables), width), np.int64)
    for row, (table, end) in enumerate(zip(tables, ends, strict=True)):
        used = -(-end // block)
        pages[row, :used] = table[:used]
        pages[row, used:] = table[0]
    return pages.reshape(-1)


def _within(tiles: Sequence[Tile], queries: int) -> Longs:
    """Which query of its tile each of `queries` is, [tiles, queries]; padding repeats the last one."""
    within: Longs = np.minimum(np.arange(queries), _column([t.rows for t in tiles]) - 1)
    return within


def _beyond(ends: Sequence[int], width: int) -> Longs:
    """Flat indices of the tokens at and behind each end, of `width` each."""
    return np.flatnonzero(np.arange(width) >= _column(ends))


def _column(values: Sequence[int]) -> Longs:
    return np.array(values, np.int64)[:, None]


def _mask(position: Longs, length: int, share: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """0 where a query sees a token and −∞ where it does not, for queries at these positions [tiles, queries]; once for each of the `share`
    heads that read a KV head."""
    last = _long(position, device)[:, None, :, None]
    beyond = torch.arange(length, device=device) > last
    mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, float("-inf"))
    return mask.repeat(1, 1, share, 1)


def _long(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)
