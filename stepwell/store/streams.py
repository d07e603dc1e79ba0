"""Copies between device and host on a CUDA stream of their own, ordered by events.

    engine thread      compute stream ──┬── step n ──┬── step n+1 ──▶
                                        fence: an event, recorded by `start`
    worker thread      copy stream      └─wait─▶ gather · copy ─▶ event ─▶ land: wait, checksum, report

A save reads pages that a queued step may still write, a load overwrites pages that a queued step may still read: both
wait for the fence on the device. The other direction needs no event: nobody touches the target before the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import LiveState, Move, Tier
from stepwell.store.arena import as_slice, check_slots, joint_runs, region
from stepwell.store.copier import Fence, Flight, check_lengths
from stepwell.store.host import HostArena


class DeviceImages(Protocol):
    """The live states on the device, as the target of a state leg."""

    def unpack(self, rows: torch.Tensor, slot: int) -> None:
        """Set live slot `slot` from an image, uint8 [pages, page_bytes] on the device, on the current stream."""


@dataclass(frozen=True, slots=True, eq=False)
class _OnStream:
    """Work queued on the copy stream. `seal` are the host slots whose checksums can be taken once it is done."""

    done: torch.cuda.Event
    host: HostArena
    seal: Ints | None

    def arrived(self) -> bool:
        return bool(self.done.query())  # type: ignore[no-untyped-call]

    def land(self) -> None:
        self.done.synchronize()
        if self.seal is not None:
            self.host.seal(self.seal)


class StreamCopier:
    """A `Copier` between `pages` (uint8 [pages, page_bytes], on one CUDA device) and a pinned host arena.

    Scattered pages go through a staging tensor on the device, so that the link sees one copy per run of host slots:
    measured on PCIe 5, 480 KB pages move at 48 GiB/s that way and at 33–37 GiB/s one by one.
    """

    def __init__(self, pages: torch.Tensor, host: HostArena, live: DeviceImages | None = None) -> None:
        assert pages.is_cuda and pages.dtype == torch.uint8 and pages.shape[1] == host.page_bytes
        self._pages = pages
        self._host = host
        self._host_rows = torch.from_numpy(host.rows)
        self._live = live
        self._stream = torch.cuda.Stream(pages.device)  # type: ignore[no-untyped-call]

    @property
    def page_bytes(self) -> int:
        return self._host.page_bytes

    def fence(self) -> Fence:
        """An event after everything that the calling thread has queued on its current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._pages.device))
        return event

    def begin(self, move: Move, fence: Fence) -> Flight:
        """Queue one copy. StoreError on bad slots, a bad checksum, or tiers this copier does not know."""
        with torch.cuda.device(self._pages.device), torch.cuda.stream(self._stream):
            if isinstance(fence, torch.cuda.Event):
                self._stream.wait_event(fence)
            seal = self._queue(move)
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # the worker sleeps, not spins
            done.record(self._stream)
        return _OnStream(done, self._host, seal)

    def _queue(self, move: Move) -> Ints | None:
        slots = move.source.slots
        target = None if isinstance(move.target, LiveState) else move.target.tier
        match move.source.tier, target:
            case Tier.DEVICE, Tier.HOST:
                return self._save(move)
            case Tier.HOST, Tier.DEVICE:
                self._load(move)
            case Tier.HOST, None:
                staging = torch.empty((len(slots), self.page_bytes), dtype=torch.uint8, device=self._pages.device)
                self._upload(slots, staging)
                self._to_live(move, staging)
            case Tier.DEVICE, None:
                self._to_live(move, self._gather(slots))
            case source, _:
                way = "a live state" if target is None else target.name.lower()
                raise StoreError(
                    f"no copy from {source.name.lower()} to {way}: move {move.ticket} cannot be carried out"
                )
        return None

    def _save(self, move: Move) -> Ints:
        check_lengths(move)
        assert not isinstance(move.target, LiveState)
        slots = move.target.slots
        check_slots(slots, self._host.slots, "the host arena")
        rows = self._gather(move.source.slots)
        for run in joint_runs(slots, slots):
            self._host_rows[region(slots, run)].copy_(rows[run], non_blocking=True)
        return slots

    def _load(self, move: Move) -> None:
        check_lengths(move)
        assert not isinstance(move.target, LiveState)
        slots = move.target.slots
        check_slots(slots, len(self._pages), "the device arena")
        whole = as_slice(slots)
        if whole is not None:
            self._upload(move.source.slots, self._pages[whole])
            return
        staging = torch.empty((len(slots), self.page_bytes), dtype=torch.uint8, device=self._pages.device)
        self._upload(move.source.slots, staging)
        self._pages.index_copy_(0, self._index(slots), staging)

    def _upload(self, slots: Ints, rows: torch.Tensor) -> None:
        """Queue copies of these host slots into `rows`, in order, once their checksums hold."""
        self._host.check(slots)
        for run in joint_runs(slots, slots):
            rows[run].copy_(self._host_rows[region(slots, run)], non_blocking=True)

    def _gather(self, slots: Ints) -> torch.Tensor:
        """Device pages in order: a view where they are consecutive, else a copy that the copy stream owns."""
        check_slots(slots, len(self._pages), "the device arena")
        whole = as_slice(slots)
        return self._pages[whole] if whole is not None else self._pages.index_select(0, self._index(slots))

    def _index(self, slots: Ints) -> torch.Tensor:
        return torch.from_numpy(slots.astype("int64")).to(self._pages.device)

    def _to_live(self, move: Move, rows: torch.Tensor) -> None:
        assert isinstance(move.target, LiveState)
        if self._live is None:
            raise StoreError(f"move {move.ticket} goes to live state {move.target.slot}, but this mover has none")
        self._live.unpack(rows, move.target.slot)
