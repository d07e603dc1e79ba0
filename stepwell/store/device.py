"""The device's bytes: pages for KV and images, and the live states of running sequences.

rows   uint8 [pages, page_bytes]; a page is one contiguous row, so that it moves as one copy
page   [attention layers, 2 (keys, values), block, kv_heads, head_dim], or a slice of an image
image  recurrent state of all linear layers, then their convolution state, over a list of pages in order
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Geometry, Ints
from stepwell.base.shapes import ModelShape, Widths
from stepwell.store.arena import Rows, check_slots


@dataclass(frozen=True, slots=True)
class Precision:
    """Element types: of the KV, of the model (and so of its convolution inputs), of the recurrent state."""

    kv: torch.dtype
    model: torch.dtype
    state: torch.dtype = torch.float32

    @property
    def widths(self) -> Widths:
        return Widths(self.kv.itemsize, self.model.itemsize, self.state.itemsize)


class DeviceArena:
    """One allocation of pages. `keys[i]` and `values[i]` are attention layer i's view of every page:
    [pages, block, kv_heads, head_dim]."""

    __slots__ = ("geometry", "keys", "rows", "values")

    def __init__(
        self, pages: int, shape: ModelShape, geometry: Geometry, precision: Precision, device: torch.device
    ) -> None:
        self.geometry = geometry
        self.rows = torch.zeros(pages, geometry.page_bytes, dtype=torch.uint8, device=device)
        layers = shape.attention_layers
        kv = self.rows.view(precision.kv).view(pages, layers, 2, geometry.block, shape.kv_heads, shape.head_dim)
        self.keys = tuple(kv[:, i, 0] for i in range(layers))
        self.values = tuple(kv[:, i, 1] for i in range(layers))

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def page_bytes(self) -> int:
        return self.geometry.page_bytes

    def read(self, slots: Ints) -> Rows:
        """Bytes of these pages for the host, [n, page_bytes]; a copy."""
        check_slots(slots, self.rows.shape[0], "the device")
        return self.get(slots).cpu().numpy()

    def write(self, slots: Ints, rows: Rows) -> None:
        """Copy host row i into page `slots[i]`."""
        check_slots(slots, self.rows.shape[0], "the device")
        self.put(slots, torch.from_numpy(rows).to(self.device))

    def put(self, pages: Ints, rows: Tensor) -> None:
        """Write uint8 rows [n, page_bytes] to these n pages."""
        self.rows.index_copy_(0, index(pages, self.device), rows)

    def get(self, pages: Ints) -> Tensor:
        """A copy of these n pages, uint8 [n, page_bytes]."""
        return self.rows.index_select(0, index(pages, self.device))


@dataclass(frozen=True, slots=True)
class Image:
    """One rung's bytes and the views into them.

    rows       uint8 [image_pages, page_bytes]; what is left of the last page is zero
    recurrent  [linear layers, value_heads, key_dim, value_dim]
    conv       [linear layers, kernel − 1, channels]
    """

    rows: Tensor
    recurrent: Tensor
    conv: Tensor


class LiveStates:
    """Recurrent states of the running set: fixed arrays over `slots`.

    recurrent  [linear layers, slots, value_heads, key_dim, value_dim]
    conv       [linear layers, slots, kernel − 1, channels]
    """

    __slots__ = ("_geometry", "conv", "recurrent")

    def __init__(
        self, slots: int, shape: ModelShape, geometry: Geometry, precision: Precision, device: torch.device
    ) -> None:
        layers = shape.linear_layers
        self._geometry = geometry
        state = (shape.value_heads, shape.key_dim, shape.value_dim)
        window = (shape.conv_kernel - 1, shape.conv_channels)
        self.recurrent = torch.zeros(layers, slots, *state, dtype=precision.state, device=device)
        self.conv = torch.zeros(layers, slots, *window, dtype=precision.model, device=device)

    @property
    def slots(self) -> int:
        return self.recurrent.shape[1]

    def zero(self, slot: int) -> None:
        """The state that has folded nothing."""
        self.recurrent[:, slot] = 0
        self.conv[:, slot] = 0

    def new_image(self) -> Image:
        """An image of zeros, to be filled."""
        geometry = self._geometry
        rows = torch.zeros(geometry.image_pages, geometry.page_bytes, dtype=torch.uint8, device=self.recurrent.device)
        return self.as_image(rows)

    def as_image(self, rows: Tensor) -> Image:
        """Views into an image's bytes, uint8 [image_pages, page_bytes] and contiguous."""
        split = self.recurrent[:, 0].numel() * self.recurrent.itemsize
        flat = rows.view(-1)[: self._geometry.image_bytes]
        recurrent = flat[:split].view(self.recurrent.dtype).view(self.recurrent[:, 0].shape)
        conv = flat[split:].view(self.conv.dtype).view(self.conv[:, 0].shape)
        return Image(rows, recurrent, conv)

    def pack(self, slot: int) -> Image:
        """A copy of the slot's state."""
        image = self.new_image()
        image.recurrent.copy_(self.recurrent[:, slot])
        image.conv.copy_(self.conv[:, slot])
        return image

    def load_image(self, slot: int, image: Rows) -> None:
        """The slot's state becomes that of host bytes, uint8 [image_pages · page_bytes]."""
        shape = (self._geometry.image_pages, self._geometry.page_bytes)
        self.unpack(torch.from_numpy(image).view(shape), slot)

    def unpack(self, rows: Tensor, slot: int) -> None:
        """The slot's state becomes that of an image's bytes, uint8 [image_pages, page_bytes], on any device."""
        image = self.as_image(rows.to(self.recurrent.device).contiguous())
        self.recurrent[:, slot] = image.recurrent
        self.conv[:, slot] = image.conv


def index(numbers: Ints, device: torch.device) -> Tensor:
    """Page or slot numbers as int64 on the device."""
    return torch.from_numpy(numbers.astype(np.int64)).to(device)
