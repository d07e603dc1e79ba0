"""Images between live states and pages of the device arena, in the order of the device's other work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.store.device import DeviceArena, LiveStates

Upload: TypeAlias = Callable[[Sequence[npt.NDArray[np.int64]]], list[Tensor]]
"""Sends arrays to the device without waiting for it."""
Places: TypeAlias = Sequence[tuple[int, Ints]]
"""A live slot, and the pages of its image, in order."""

_AT_ONCE = 8
"""Live states that are copied through memory of their own together: an image may have 60 MB."""


class ImageCopies(Protocol):
    """Neither call waits for the device."""

    def save(self, places: Places) -> None:
        """Copy the states of these slots to these pages; nothing may be pending in them. The rest of the last page becomes 0."""

    def load(self, places: Places) -> None:
        """The state of each of these slots becomes that of the image on these pages."""


def image_copies(arena: DeviceArena, live: LiveStates, upload: Upload) -> ImageCopies:
    """By a kernel on a GPU that has Triton, else by torch's operations."""
    kernel = arena.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return KernelImages(arena, live, upload) if kernel else PlainImages(arena, live, upload)


class PlainImages:
    """Through memory of their own: each byte is read and written twice."""

    __slots__ = ("_arena", "_live", "_upload")

    def __init__(self, arena: DeviceArena, live: LiveStates, upload: Upload) -> None:
        self._arena = arena
        self._live = live
        self._upload = upload

    def save(self, places: Places) -> None:
        for at in range(0, len(places), _AT_ONCE):
            part = places[at : at + _AT_ONCE]
            (pages,) = self._upload([np.concatenate([own for _, own in part]).astype(np.int64)])
            self._arena.put(pages, self._live.pack(np.array([slot for slot, _ in part], np.int32)).rows)

    def load(self, places: Places) -> None:
        sent = self._upload([own.astype(np.int64) for _, own in places]) if places else []
        for (slot, _), pages in zip(places, sent, strict=True):
            self._live.unpack(self._arena.get(pages), slot)


class KernelImages:
    """By one kernel for all of them. It also runs on a CPU, in Triton's interpreter."""

    __slots__ = ("_arena", "_live", "_upload")

    def __init__(self, arena: DeviceArena, live: LiveStates, upload: Upload) -> None:
        self._arena = arena
        self._live = live
        self._upload = upload

    def save(self, places: Places) -> None:
        self._copy(places, save=True)

    def load(self, places: Places) -> None:
        self._copy(places, save=False)
        for slot, _ in places:
            self._live.filled(slot)

    def _copy(self, places: Places, save: bool) -> None:
        from stepwell.ops.triton.images import copy_images

        if not places:
            return
        arrays = np.array([slot for slot, _ in places], np.int64), np.concatenate([own for _, own in places])
        slots, pages = self._upload([array.astype(np.int64) for array in arrays])
        image_pages = self._arena.geometry.image_pages
        copy_images(self._arena.rows, self._live.parts, slots, pages, image_pages, save)
