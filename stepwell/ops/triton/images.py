"""Images of rungs, straight between live states and pages: one launch for all images of a step, each byte read and written once.

    live states   recurrent [layers, slots, …]      conv [layers, slots, …]      hidden [layers, slots, …]
                      │ layer 0 │ layer 1 │ …           │ layer 0 │ …                │ …
    image         ════════════════════════════════════════════════════════════════════════│ zeros ═══│
    pages         │ page 7            │ page 2            │ page 9            │ …

A block copies one tile. Tiles are so small that none lies in two pages or in two layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST = 2048
"""Words of a tile: 16 KiB."""
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the live states, in bytes: what a layer of a slot has of it, and how far layers and slots lie apart."""

    layers: int
    span: int
    layer: int
    slot: int

    @classmethod
    def of(cls, part: Tensor) -> Part:
        """`part` [layers, slots, …]; what one layer of one slot has is contiguous."""
        assert part[:1, :1].is_contiguous()
        size, width = part.shape[2:].numel(), part.itemsize
        return cls(part.shape[0], size * width, part.stride(0) * width, part.stride(1) * width)


def copy_images(
    rows: Tensor, parts: Sequence[Tensor], slots: Tensor, pages: Tensor, image_pages: int, save: bool
) -> None:
    """Copy the states of these slots to images (`save`), or images to the states of these slots.

    rows   uint8 [pages, page bytes], contiguous
    parts  three of [layers, slots, …], in the order in which an image holds them; one may be empty
    slots  int64 [n]; no two alike where they are written to
    pages  int64 [n · image_pages], where the images lie, one behind the other; what is left of the last page of each becomes 0
    """
    count = slots.shape[0]
    if not count or not image_pages:
        return
    assert rows.is_contiguous() and pages.shape[0] == count * image_pages and len(parts) == 3
    layout, page = [Part.of(part) for part in parts], rows.shape[1]
    step = math.gcd(page, *(size for one in layout if one.layers for size in (one.span, one.layer, one.slot)))
    word = next(word for word in _WORDS if step % word.itemsize == 0)
    step //= word.itemsize
    tile = min(_MOST, step & -step)
    numbers, end = [], 0
    for one in layout:
        end += one.layers * one.span // word.itemsize
        numbers += [max(1, size // word.itemsize) for size in (one.span, one.layer, one.slot)] + [end]
    page //= word.itemsize
    _image_kernel[(image_pages * page // tile, count)](
        rows.view(word), *(_flat(part, word) for part in parts), slots, pages, page, image_pages, *numbers, TILE=tile, SAVE=save
    )  # fmt: skip


def _flat(part: Tensor, word: torch.dtype) -> Tensor:
    """The memory of a part as words, from its first byte on."""
    whole = part.as_strided((part.stride(0) * part.shape[0],), (1,))
    return whole.view(torch.uint8).view(word)


@triton.jit
def _tile_kernel(at, own, SAVE: tl.constexpr):
    if SAVE:
        tl.store(at, tl.load(own))
    else:
        tl.store(own, tl.load(at))


@triton.jit
def _image_kernel(
    memory, recurrent, conv, hidden, slots, pages, PAGE: tl.constexpr, PAGES: tl.constexpr,
    R_SPAN: tl.constexpr, R_LAYER: tl.constexpr, R_SLOT: tl.constexpr, R_END: tl.constexpr,
    C_SPAN: tl.constexpr, C_LAYER: tl.constexpr, C_SLOT: tl.constexpr, C_END: tl.constexpr,
    H_SPAN: tl.constexpr, H_LAYER: tl.constexpr, H_SLOT: tl.constexpr, H_END: tl.constexpr,
    TILE: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    word, image = tl.program_id(0).to(tl.int64) * TILE, tl.program_id(1)
    slot, page = tl.load(slots + image), tl.load(pages + image * PAGES + word // PAGE)
    lane = tl.arange(0, TILE)
    at = memory + page * PAGE + word % PAGE + lane
    if word < R_END:
        _tile_kernel(at, recurrent + word // R_SPAN * R_LAYER + slot * R_SLOT + word % R_SPAN + lane, SAVE)
    elif word < C_END:
        word -= R_END
        _tile_kernel(at, conv + word // C_SPAN * C_LAYER + slot * C_SLOT + word % C_SPAN + lane, SAVE)
    elif word < H_END:
        word -= C_END
        _tile_kernel(at, hidden + word // H_SPAN * H_LAYER + slot * H_SLOT + word % H_SPAN + lane, SAVE)
    elif SAVE:
        tl.store(at, tl.zeros((TILE,), at.dtype.element_ty))
