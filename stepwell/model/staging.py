"""How bytes of a file become a tensor: read right into its memory on the CPU, through a few page-locked buffers on a GPU.

file ──preadv──▶ buffer ──copy, on a stream of its own──▶ tensor      many pieces under way at once; no second copy in host memory
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

PIECE = 16 << 20
"""Bytes of one read: several are under way at once, which is what a disk needs to be busy."""

Read: TypeAlias = Callable[[memoryview], None]
"""Fills all of this memory, or raises."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A fresh tensor to be filled, and the event after which its memory on the device may be written (None: at once)."""

    tensor: Tensor
    free: torch.cuda.Event | None = None

    def part(self, start: int, end: int) -> Tensor:
        """Bytes [start, end) of it, uint8."""
        return self.tensor.view(-1).view(torch.uint8)[start:end]


class Place(Protocol):
    """Where tensors are made. `fill` is called on any thread, the rest on the one that uses the tensors."""

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Target:
        """A tensor of no particular values."""

    def fill(self, target: Target, start: int, end: int, read: Read) -> None:
        """Read bytes [start, end) of `target`, at most `PIECE`; they are there once `settle` has been called."""

    def settle(self) -> None:
        """Whatever is computed from now on sees all that has been filled."""


class InMemory:
    """Tensors on the CPU, filled in place."""

    __slots__ = ()

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Target:
        return Target(torch.empty(shape, dtype=dtype))

    def fill(self, target: Target, start: int, end: int, read: Read) -> None:
        read(target.part(start, end).numpy().data)

    def settle(self) -> None:
        return


@dataclass(slots=True, eq=False)
class _Buffer:
    memory: Tensor
    sent: torch.cuda.Event | None = None


class Staged:
    """Tensors on `device`, filled through `buffers` of `PIECE` bytes each. On the CPU the same without streams, for tests."""

    __slots__ = ("_device", "_free", "_stream")

    def __init__(self, device: torch.device, buffers: int) -> None:
        cuda = device.type == "cuda"
        self._device = device
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._free: SimpleQueue[_Buffer] = SimpleQueue()
        for _ in range(buffers):
            self._free.put(_Buffer(torch.empty(PIECE, dtype=torch.uint8, pin_memory=cuda)))

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Target:
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        if self._stream is None:
            return Target(tensor)
        free = torch.cuda.Event()  # type: ignore[no-untyped-call]
        free.record(torch.cuda.current_stream(self._device))  # kernels that used this memory before may still run
        return Target(tensor, free)

    def fill(self, target: Target, start: int, end: int, read: Read) -> None:
        buffer = self._free.get()
        try:
            if buffer.sent is not None:
                buffer.sent.synchronize()
            part = buffer.memory[: end - start]
            read(part.numpy().data)
            buffer.sent = self._send(part, target, start, end)
        finally:
            self._free.put(buffer)

    def _send(self, part: Tensor, target: Target, start: int, end: int) -> torch.cuda.Event | None:
        if self._stream is None or target.free is None:
            target.part(start, end).copy_(part)
            return None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(target.free)
            target.part(start, end).copy_(part, non_blocking=True)
            sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            sent.record(self._stream)
        return sent

    def settle(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


def place_on(device: torch.device, readers: int) -> Place:
    """Where tensors for `device` are made by so many readers."""
    return InMemory() if device.type == "cpu" else Staged(device, readers)
