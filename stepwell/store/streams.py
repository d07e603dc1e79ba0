"""Copies between device and host on CUDA: page by page straight from slot to slot, a stream for each direction.

    engine thread      compute stream ── step n ── step n+1 ──▶
    a thread a lane    copy stream    ── begin ▸ pieces ▸ end ──▶ land: wait for `end`, checksums, report

No copy waits for the compute. What a save reads has been published, so the step that wrote it has been collected; what a load
overwrites is free, so no launched step names it. Nobody touches either before the report. What a collected step still writes behind its
result, drafts for the next one, is an exception that loads wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.store.arena import check_slots
from stepwell.store.copier import BegunCopy, check_lengths
from stepwell.store.cudart import Cudart, libraries
from stepwell.store.host import HostArena
from stepwell.store.pieces import Pieces, Spans, pieces

TOGETHER = 64 << 20
"""Bytes of a call: they take 1.3 ms of the link, and a call a tenth of a millisecond of the interpreter, which it may have to wait for.
Smaller ones leave the link idle in between: two of 32 MiB at a time reach 0.91 of it where these reach 0.935 (docs/numbers.md)."""


class Sent(Protocol):
    """Pieces on their way."""

    def arrived(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> float:
        """Wait until all bytes are there; the seconds that they took, without what was ahead of them."""


class Lane(Protocol):
    """One direction of a link. What is sent goes in the order of the calls."""

    @property
    def name(self) -> str:
        """What copies, for people."""

    def send(self, pieces: Pieces, then: Callable[[], None] | None = None) -> Sent:
        """Queue these copies, and behind them what `then` queues on the current stream. StoreError where they are refused."""


class ImageMemory(Protocol):
    """Live states, as the target of a state leg."""

    def spans(self, slot: int) -> Spans:
        """Where the bytes of an image lie in slot `slot`, in order."""

    def filled(self, slot: int) -> None:
        """The slot's bytes are, or on the current stream will be, an image's."""


@dataclass(frozen=True, slots=True, eq=False)
class _OnStream:
    begin: torch.cuda.Event
    end: torch.cuda.Event

    def arrived(self) -> bool:
        return bool(self.end.query())  # type: ignore[no-untyped-call]

    def wait(self) -> float:
        self.end.synchronize()
        milliseconds: float = self.begin.elapsed_time(self.end)
        return milliseconds / 1e3


Behind: TypeAlias = Callable[[], "torch.cuda.Event | None"]
"""What the compute stream does behind results: an event at its end; None where there is nothing. Called in any thread."""


class CudaLane:
    """A stream of one device. `behind`: each copy waits for what that names when it is sent."""

    __slots__ = ("_behind", "_device", "_send", "_stream", "name")

    def __init__(self, device: torch.device, cudart: Cudart, behind: Behind | None = None) -> None:
        self._device = device
        self._behind = behind
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._send, self.name = cudart.sender()

    def send(self, pieces: Pieces, then: Callable[[], None] | None = None) -> Sent:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            # blocking: whoever waits for it sleeps, and leaves the interpreter to the engine
            begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
            if self._behind is not None and (event := self._behind()) is not None:
                self._stream.wait_event(event)
            begin.record(self._stream)
            try:
                self._send(pieces, self._stream.cuda_stream)
                if then is not None:
                    then()
            except BaseException:
                self._stream.synchronize()  # what was queued before the refusal still writes: nobody may have its target yet
                raise
            end.record(self._stream)
        return _OnStream(begin, end)


def cuda_lanes(device: torch.device, behind: Behind | None = None) -> tuple[CudaLane, CudaLane]:
    """A lane into the device, whose copies wait for what is `behind` results, and one out of it. StoreError where CUDA's runtime cannot
    be loaded."""
    cudart = Cudart.load(libraries(torch.version.cuda))
    return CudaLane(device, cudart, behind), CudaLane(device, cudart)


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """A move on its way. `seal` are the host slots whose checksums can be taken once it is done."""

    sent: Sent
    host: HostArena
    seal: Ints | None

    def arrived(self) -> bool:
        return self.sent.arrived()

    def land(self) -> float:
        seconds = self.sent.wait()
        if self.seal is not None:
            self.host.seal(self.seal)
        return seconds


def _joined(extents: Sequence[Extent]) -> Extent:
    """One extent of all their slots; they are of one tier."""
    if len(extents) == 1:
        return extents[0]
    return Extent(extents[0].tier, np.concatenate([extent.slots for extent in extents]))


class StreamCopier:
    """A `Copier` between device pages and a page-locked host arena. Pages and live states are only ever named by address.

    pages     uint8 [pages, page_bytes], contiguous
    up, down  lanes into the device and out of it
    together  bytes of a call, at most
    """

    def __init__(
        self,
        pages: torch.Tensor,
        host: HostArena,
        live: ImageMemory | None = None,
        *,
        up: Lane,
        down: Lane,
        together: int = TOGETHER,
    ) -> None:
        assert pages.is_contiguous() and pages.dtype == torch.uint8 and pages.shape[1] == host.page_bytes
        self._pages = pages
        self._host = host
        self._live = live
        self._up, self._down = up, down
        self._together = together

    @property
    def page_bytes(self) -> int:
        return self._host.page_bytes

    @property
    def name(self) -> str:
        return self._up.name

    @property
    def together(self) -> int:
        return self._together

    def begin(self, moves: Sequence[Move]) -> BegunCopy:
        """Queue these copies as one. StoreError on bad slots, a bad checksum, or tiers this copier does not know."""
        first = moves[0]
        if isinstance(first.target, LiveState):
            assert len(moves) == 1, "an image is begun alone"
            return self._begin_image(first, first.target.slot, self._spans(first.source))
        for move in moves:
            check_lengths(move)
        source = _joined([move.source for move in moves])
        target = _joined([move.target for move in moves if isinstance(move.target, Extent)])
        copied = pieces(self._spans(source), self._spans(target))
        match source.tier, target.tier:
            case Tier.DEVICE, Tier.HOST:
                return _Copy(self._down.send(copied), self._host, target.slots)
            case Tier.HOST, Tier.DEVICE:
                self._host.check(source.slots)
                return _Copy(self._up.send(copied), self._host, None)
            case same, _:
                raise StoreError(
                    f"move {first.ticket} copies from {same.name.lower()} to itself: no such copy is known"
                )

    def _begin_image(self, move: Move, slot: int, source: Spans) -> BegunCopy:
        live = self._live
        if live is None:
            raise StoreError(f"move {move.ticket} goes to live state {slot}, but this mover has no live states")
        if move.source.tier == Tier.HOST:
            self._host.check(move.source.slots)
        sent = self._up.send(pieces(source, live.spans(slot)), lambda: live.filled(slot))
        return _Copy(sent, self._host, None)

    def _spans(self, extent: Extent) -> Spans:
        """Where these slots lie. StoreError unless they exist. Each is a span of its own: page-locking may end between two."""
        if extent.tier == Tier.DEVICE:
            check_slots(extent.slots, len(self._pages), "the device arena")
            return Spans.of_rows(self._pages.data_ptr(), self.page_bytes, extent.slots)
        if extent.tier != Tier.HOST:
            raise StoreError(
                f"a move names slots of the {extent.tier.name.lower()} arena, which this mover does not have"
            )
        check_slots(extent.slots, self._host.slots, "the host arena")
        return Spans.of_rows(self._host.rows.ctypes.data, self.page_bytes, extent.slots)
