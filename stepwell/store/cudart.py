"""The calls of CUDA's runtime that torch does not offer, by ctypes: batched copies, page-locking, where a card sits.

Functions and structures are those of cuda_runtime_api.h: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
ctypes lets other Python threads run during a call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepwell.base.errors import StoreError
from stepwell.store.pieces import Pieces, Words

_VERSIONS = ("13", "12")
_NEW_CALL = 13_000
"""Version of CUDA from which the batched copy names no failed piece."""
_PORTABLE = 1  # cudaHostRegisterPortable
_HOST_OR_DEVICE = 4  # cudaMemcpyDefault: pointers tell which
_LONGEST_ID = 32

Send: TypeAlias = Callable[[Pieces, int], None]
"""Queues copies on the stream with this handle; StoreError where CUDA refuses."""


def libraries(version: str | None) -> tuple[str, ...]:
    """Names under which CUDA's runtime may be found, the one first that a torch for this version of CUDA has loaded.

    >>> libraries("12.8")
    ('libcudart.so.12', 'libcudart.so.13')
    """
    own = (version or "").partition(".")[0]
    return tuple(f"libcudart.so.{major}" for major in sorted(_VERSIONS, key=lambda major: major != own))


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Attributes(ctypes.Structure):
    """cudaMemcpyAttributes. Order 1: sources are read in stream order. Flag 1: leave the processors to the compute."""

    _fields_ = [("order", ctypes.c_int), ("source", _Location), ("target", _Location), ("flags", ctypes.c_uint)]


class Cudart:
    """CUDA's runtime, loaded as a library. `library` may be any object with its functions (tests)."""

    __slots__ = ("_library", "version")

    def __init__(self, library: Any) -> None:
        """Raises StoreError where the library does not tell its version."""
        self._library = library
        version = ctypes.c_int()
        self._call("cudaRuntimeGetVersion", ctypes.byref(version))
        self.version = version.value

    @classmethod
    def load(cls, names: Iterable[str]) -> Cudart:
        """The first of these libraries that can be loaded (see `libraries`). Raises StoreError naming them."""
        tried = []
        for name in names:
            try:
                return cls(ctypes.CDLL(name))
            except OSError as error:
                tried.append(f"{name}: {error}")
        raise StoreError(f"CUDA's runtime library cannot be loaded ({'; '.join(tried)})")

    def sender(self) -> tuple[Send, str]:
        """The fastest way to copy pieces that this version has, and what it is, for people."""
        if hasattr(self._library, "cudaMemcpyBatchAsync"):
            return self._send_batch, "cudaMemcpyBatchAsync"
        return self._send_each, "cudaMemcpyAsync for each page (cudaMemcpyBatchAsync needs CUDA 12.8)"

    def register(self, address: int, size: int) -> None:
        """Page-lock this memory, for copies at the link's speed."""
        self._call("cudaHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE))

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._call("cudaHostUnregister", ctypes.c_void_p(address))

    def use(self, index: int) -> None:
        """Have this thread work with device `index`."""
        self._call("cudaSetDevice", ctypes.c_int(index))

    def pci_id(self, index: int) -> str:
        """Address of device `index` on its bus, as Linux writes it: `0000:1b:00.0`."""
        text = ctypes.create_string_buffer(_LONGEST_ID)
        self._call("cudaDeviceGetPCIBusId", text, ctypes.c_int(_LONGEST_ID), ctypes.c_int(index))
        return text.value.decode().lower()

    def _send_batch(self, pieces: Pieces, stream: int) -> None:
        if not len(pieces.sizes):
            return
        attributes, first = _Attributes(1, _Location(), _Location(), 1), ctypes.c_size_t(0)
        failed = () if self.version >= _NEW_CALL else (ctypes.byref(ctypes.c_size_t()),)
        self._call(
            "cudaMemcpyBatchAsync",
            _pointer(pieces.targets),
            _pointer(pieces.sources),
            _pointer(pieces.sizes),
            ctypes.c_size_t(len(pieces.sizes)),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            *failed,
            ctypes.c_void_p(stream),
        )

    def _send_each(self, pieces: Pieces, stream: int) -> None:
        handle, kind = ctypes.c_void_p(stream), ctypes.c_int(_HOST_OR_DEVICE)
        arrays = (pieces.targets.tolist(), pieces.sources.tolist(), pieces.sizes.tolist())
        for target, source, size in zip(*arrays, strict=True):
            self._call(
                "cudaMemcpyAsync", ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size), kind, handle
            )

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise StoreError(f"{name} failed with CUDA error {code}")


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Page-locks for device `index`, on any thread: without one, CUDA would make a context on the first device."""

    cudart: Cudart
    index: int

    def register(self, address: int, size: int) -> None:
        self.cudart.use(self.index)
        self.cudart.register(address, size)

    def unregister(self, address: int) -> None:
        self.cudart.use(self.index)
        self.cudart.unregister(address)


def _pointer(words: Words) -> ctypes.c_void_p:
    assert words.flags.c_contiguous and words.dtype == "uint64"
    return ctypes.c_void_p(words.ctypes.data)
