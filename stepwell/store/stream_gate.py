"""The disk's gate on CUDA: pinned memory between the files and the device, on a stream of its own, ordered by events."""

from __future__ import annotations

from typing import Protocol

import torch

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Extent, LiveState, Tier
from stepwell.store.arena import Rows, as_slice, check_slots
from stepwell.store.disk.gate import Fence
from stepwell.store.host import HostArena


class DeviceImages(Protocol):
    """The live states on the device, as the target of a state leg."""

    def unpack(self, rows: torch.Tensor, slot: int) -> None:
        """Set live slot `slot` from an image, uint8 [pages, page_bytes] on the device, on the current stream."""


class StreamGate:
    """A `Gate` (see `stepwell.store.disk.gate`) to `pages` (uint8 [pages, page_bytes], on one CUDA device), host arena and live states.

    Each call waits for its own copies only; the fence is waited for on the device.
    """

    def __init__(self, pages: torch.Tensor, host: HostArena | None, live: DeviceImages | None = None) -> None:
        assert pages.is_cuda and pages.dtype == torch.uint8
        self._pages = pages
        self._host = host
        self._live = live
        self._stream = torch.cuda.Stream(pages.device)  # type: ignore[no-untyped-call]
        self._staging = torch.empty((0, pages.shape[1]), dtype=torch.uint8)  # the writer's

    def fence(self) -> Fence:
        """An event after everything that the calling thread has queued on its current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._pages.device))
        return event

    def memory(self, pages: int) -> Rows:
        """Pinned, so that the link runs at its full speed."""
        rows: Rows = self._pinned(pages).numpy()
        return rows

    def fetch(self, extent: Extent, fence: Fence) -> Rows:
        """As the protocol says. Device bytes are good until the next call, which only one thread may make at a time."""
        if extent.tier == Tier.HOST:
            return self._arena().read(extent.slots)
        self._check(extent)
        if len(self._staging) < len(extent.slots):
            self._staging = self._pinned(len(extent.slots))
        rows = self._staging[: len(extent.slots)]
        with torch.cuda.device(self._pages.device), torch.cuda.stream(self._stream):
            self._begin(fence)
            whole = as_slice(extent.slots)
            source = self._pages[whole] if whole is not None else self._pages.index_select(0, self._index(extent.slots))
            rows.copy_(source, non_blocking=True)
            self._finish()
        found: Rows = rows.numpy()
        return found

    def deliver(self, target: Extent | LiveState, rows: Rows, fence: Fence) -> None:
        if isinstance(target, Extent) and target.tier == Tier.HOST:
            self._arena().write(target.slots, rows)
            return
        if isinstance(target, Extent):
            self._check(target)
        with torch.cuda.device(self._pages.device), torch.cuda.stream(self._stream):
            self._begin(fence)
            staged = torch.from_numpy(rows).to(self._pages.device, non_blocking=True)
            if isinstance(target, Extent):
                self._pages.index_copy_(0, self._index(target.slots), staged)
            elif self._live is None:
                raise StoreError(f"a move goes to live state {target.slot}, but this engine has none")
            else:
                self._live.unpack(staged, target.slot)
            self._finish()

    def _arena(self) -> HostArena:
        if self._host is None:
            raise StoreError("a move names slots of the host arena, which this engine does not have")
        return self._host

    def _check(self, extent: Extent) -> None:
        if extent.tier != Tier.DEVICE:
            raise StoreError(
                f"no copy between two slots on disk: a move names {extent.tier.name.lower()} slots on both sides"
            )
        check_slots(extent.slots, len(self._pages), "the device arena")

    def _begin(self, fence: Fence) -> None:
        if isinstance(fence, torch.cuda.Event):
            self._stream.wait_event(fence)

    def _finish(self) -> None:
        """Wait for what this thread has queued."""
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record(self._stream)
        done.synchronize()

    def _pinned(self, pages: int) -> torch.Tensor:
        return torch.empty((pages, self._pages.shape[1]), dtype=torch.uint8, pin_memory=True)

    def _index(self, slots: Ints) -> torch.Tensor:
        return torch.from_numpy(slots.astype("int64")).to(self._pages.device)
