"""The device's bytes: pages for KV and images, and the live states of running sequences.

rows   uint8 [pages, page_bytes]; a page is one contiguous row, so that it moves as one copy
page   [attention layers, 2 (keys, values) or 1 (latents), block, kv_heads, head_dim], or a slice of an image
image  recurrent state of all linear layers, then their convolution state, then the hidden row that drafts go on from, over a list of
       pages in order
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry, Ints
from stepwell.base.shapes import ModelShape, Widths
from stepwell.ops.pending import Ring
from stepwell.store.arena import Rows, check_slots
from stepwell.store.pieces import Spans, Words


@dataclass(frozen=True, slots=True)
class Precision:
    """Element types: of the KV, of the model (and so of its convolution inputs), of the recurrent state."""

    kv: torch.dtype
    model: torch.dtype
    state: torch.dtype = torch.float32

    @classmethod
    def of(cls, model: torch.dtype, kv: str = "auto", state: str = "float32") -> Precision:
        """`kv` as --kv-cache-dtype has it, `state` as --state-dtype. Raises ConfigError."""
        if kv in ("bfloat16", "bf16") and model != torch.bfloat16:
            raise ConfigError(f"--kv-cache-dtype {kv} needs --dtype bfloat16: KV has the model's type, or is fp8")
        states = torch.bfloat16 if state == "bfloat16" else torch.float32
        return cls(torch.float8_e4m3fn if kv.startswith("fp8") else model, model, states)

    @property
    def widths(self) -> Widths:
        return Widths(self.kv.itemsize, self.model.itemsize, self.state.itemsize)


def _zeros(rows: int, row_bytes: int, device: torch.device) -> Tensor:
    """Zero bytes, uint8 [rows, row_bytes]; a CPU's pages are taken when they are first written, so that a start does not wait for all."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros((rows, row_bytes), dtype=np.uint8))
    return torch.zeros(rows, row_bytes, dtype=torch.uint8, device=device)


class DeviceArena:
    """One allocation of pages, and one page more. `keys[i]` and `values[i]` are attention layer i's view of all of them:
    [pages + 1, block, kv_heads, head_dim]. Of latents, `values` are the first part of `keys`. The last page, `spare`, takes what must not
    be stored; nobody reads it."""

    __slots__ = ("geometry", "keys", "rows", "values")

    def __init__(
        self, pages: int, shape: ModelShape, geometry: Geometry, precision: Precision, device: torch.device
    ) -> None:
        self.geometry = geometry
        every = _zeros(pages + 1, geometry.page_bytes, device)
        self.rows = every[:pages]
        layers = shape.attention_layers + shape.draft_layers
        sizes = (shape.kv_rows, geometry.block, shape.kv_heads, shape.head_dim)
        kv = every.view(precision.kv).view(pages + 1, layers, *sizes)
        self.keys = tuple(kv[:, i, 0] for i in range(layers))
        self.values = tuple(kv[:, i, -1, ..., : shape.value_width] for i in range(layers))

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def spare(self) -> int:
        """The number of the page that nobody reads."""
        return self.rows.shape[0]

    @property
    def page_bytes(self) -> int:
        return self.geometry.page_bytes

    def touch(self, size: int) -> None:
        """Have the system hand out the memory of the first `size` bytes now, where it would do so page by page as they are written: on a
        CPU. Only before anything is written, since it clears them."""
        if self.device.type == "cpu":
            self.rows[: size // self.page_bytes].zero_()

    def read(self, slots: Ints) -> Rows:
        """Bytes of these pages for the host, [n, page_bytes]; a copy."""
        check_slots(slots, self.rows.shape[0], "the device")
        return self.get(slots).cpu().numpy()

    def write(self, slots: Ints, rows: Rows) -> None:
        """Copy host row i into page `slots[i]`."""
        check_slots(slots, self.rows.shape[0], "the device")
        self.put(slots, torch.from_numpy(rows).to(self.device))

    def put(self, pages: Ints | Tensor, rows: Tensor) -> None:
        """Write uint8 rows [n, page_bytes], contiguous, to these n pages."""
        _wide(self.rows).index_copy_(0, index(pages, self.device), _wide(rows))

    def get(self, pages: Ints | Tensor) -> Tensor:
        """A copy of these n pages, uint8 [n, page_bytes]."""
        return _wide(self.rows).index_select(0, index(pages, self.device)).view(torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """The bytes of several rungs' images and the views into them.

    rows       uint8 [images · image_pages, page_bytes], one image behind the other; what is left of its last page is zero
    recurrent  [linear layers, images, value_heads, key_dim, value_dim]
    conv       [linear layers, images, kernel − 1, channels]
    hidden     [draft layers, images, hidden]
    """

    rows: Tensor
    recurrent: Tensor
    conv: Tensor
    hidden: Tensor


class LiveStates:
    """Recurrent states of the running set: fixed arrays over `slots`, and one more for rows that pad a batch.

    recurrent  [linear layers, slots + 1, value_heads, key_dim, value_dim], of the slots' committed tokens
    conv       [linear layers, slots + 1, kernel − 1 + depth, channels]: the inputs before `committed`, then those of pending tokens
    committed  int64 [slots + 1], tokens that the state has folded; −1 where it came from an image: who uses it first says
    pending    int64 [slots + 1], tokens in the ring that are to be folded next
    rings      of each linear layer, the inputs of pending tokens (`ops/pending.py`); none with a depth of 0: tokens are folded at once
    hidden     [draft layers, slots + 1, hidden]: the decoder's output for the last token, folded or pending
    """

    __slots__ = ("_back", "_geometry", "_none", "committed", "conv", "hidden", "pending", "recurrent", "rings")

    def __init__(
        self,
        slots: int,
        shape: ModelShape,
        geometry: Geometry,
        precision: Precision,
        device: torch.device,
        depth: int = 0,
    ) -> None:
        """`depth` tokens of a slot may be pending or new at a time."""
        layers = shape.linear_layers
        self._back = shape.conv_kernel - 1
        self._geometry = geometry
        state = (shape.value_heads, shape.key_dim, shape.value_dim)
        window = (self._back + depth, shape.conv_channels)
        heads = (shape.key_heads, shape.key_dim, shape.value_heads, shape.value_dim)
        self.recurrent = torch.zeros(layers, slots + 1, *state, dtype=precision.state, device=device)
        self.conv = torch.zeros(layers, slots + 1, *window, dtype=precision.model, device=device)
        self.hidden = torch.zeros(shape.draft_layers, slots + 1, shape.hidden, dtype=precision.model, device=device)
        self.committed = torch.full((slots + 1,), -1, dtype=torch.int64, device=device)
        self.pending = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        rings = range(layers) if depth else ()
        self.rings = tuple(Ring.empty(slots + 1, depth, *heads, device, shape.decays) for _ in rings)
        self._none = self._empty(0)

    @property
    def slots(self) -> int:
        return self.recurrent.shape[1] - 1

    def zero(self, slot: int) -> None:
        """The state that has folded nothing."""
        self.recurrent[:, slot] = 0
        self.conv[:, slot] = 0
        self.hidden[:, slot] = 0
        self.committed[slot] = self.pending[slot] = 0

    def new_images(self, count: int) -> Images:
        """Images to be filled: `recurrent` and `conv` are whatever was there, the rest is zero."""
        return self._empty(count) if count else self._none

    def _empty(self, count: int) -> Images:
        geometry = self._geometry
        size = count * geometry.image_pages, geometry.page_bytes
        rows = torch.empty(size, dtype=torch.uint8, device=self.recurrent.device)
        windows = self.conv[:, 0, : self._back]
        states = self.recurrent[:, 0].numel() * self.recurrent.itemsize + windows.numel() * windows.itemsize
        rows.view(count, geometry.image_pages * geometry.page_bytes)[:, states:] = 0
        return self._images(rows, count)

    def as_images(self, rows: Tensor) -> Images:
        """Views into images' bytes, uint8 [images · image_pages, page_bytes] and contiguous; into none where images have no bytes."""
        return self._images(rows, rows.shape[0] // max(1, self._geometry.image_pages))

    def _images(self, rows: Tensor, count: int) -> Images:
        geometry = self._geometry
        flat = rows.view(count, geometry.image_pages * geometry.page_bytes)[:, : geometry.image_bytes]
        split = self.recurrent[:, 0].numel() * self.recurrent.itemsize
        windows = self.conv[:, :, : self._back]
        behind = split + windows[:, 0].numel() * windows.itemsize
        return Images(
            rows,
            _layers_first(flat[:, :split], self.recurrent),
            _layers_first(flat[:, split:behind], windows),
            _layers_first(flat[:, behind:], self.hidden),
        )

    def pack(self, slots: Ints) -> Images:
        """A copy of these slots' states; nothing may be pending in them."""
        images = self.new_images(len(slots))
        for i, slot in enumerate(slots.tolist()):  # one by one, each byte is read and written once
            images.recurrent[:, i].copy_(self.recurrent[:, slot])
            images.conv[:, i].copy_(self.conv[:, slot, : self._back])
            images.hidden[:, i].copy_(self.hidden[:, slot])
        return images

    def load_image(self, slot: int, image: Rows) -> None:
        """The slot's state becomes that of host bytes, uint8 [image_pages · page_bytes]."""
        shape = (self._geometry.image_pages, self._geometry.page_bytes)
        self.unpack(torch.from_numpy(image).view(shape), slot)

    def unpack(self, rows: Tensor, slot: int) -> None:
        """The slot's state becomes that of an image's bytes, uint8 [image_pages, page_bytes], on any device."""
        image = self._images(rows.to(self.recurrent.device).contiguous(), 1)
        self.recurrent[:, slot] = image.recurrent[:, 0]
        self.conv[:, slot, : self._back] = image.conv[:, 0]
        self.hidden[:, slot] = image.hidden[:, 0]
        self.filled(slot)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """What an image holds, in its order: each [layers, slots + 1, …], contiguous in a layer of a slot."""
        return self.recurrent, self.conv[:, :, : self._back], self.hidden

    def spans(self, slot: int) -> Spans:
        """Where the bytes of an image lie in slot `slot`, in their order: a span for each layer of each part."""
        check_slots(np.array([slot]), self.slots, "the live states")
        parts = [_layer_spans(part[:, slot]) for part in self.parts]
        return Spans(*(np.concatenate(words) for words in zip(*parts, strict=True)))

    def filled(self, slot: int) -> None:
        """The slot's bytes are, or on the current stream will be, an image's: who uses it first says how many tokens it has folded."""
        self.committed[slot], self.pending[slot] = -1, 0


def _layers_first(flat: Tensor, like: Tensor) -> Tensor:
    """Bytes [images, …] as elements of `like` [layers, slots, …], with images in place of slots."""
    layers, _, *sizes = like.shape
    if not layers:
        return like.new_empty(0, flat.shape[0], *sizes)
    return flat.view(like.dtype).view(flat.shape[0], layers, *sizes).transpose(0, 1)


def _layer_spans(part: Tensor) -> tuple[Words, Words]:
    """Addresses and sizes of [layers, …], in which each layer is contiguous."""
    layers, size = part.shape[0], part.shape[1:].numel() * part.itemsize
    assert all(layer.is_contiguous() for layer in part[:1])
    begins = np.arange(layers, dtype=np.uint64) * np.uint64(part.stride(0) * part.itemsize)
    return begins + np.uint64(part.data_ptr()), np.full(layers, size, np.uint64)


def _wide(rows: Tensor) -> Tensor:
    """The same rows of bytes as words, of 8 bytes where that divides them: torch picks rows element by element."""
    return rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows


def index(numbers: Ints | Tensor, device: torch.device) -> Tensor:
    """Page or slot numbers as int64 on the device, which is waited for, unless they are there."""
    return numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers.astype(np.int64)).to(device)
