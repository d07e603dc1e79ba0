"""CUDA's runtime by ctypes, on a library that is not there: what is called, with what, and what its refusals become."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from stepwell.base.errors import StoreError
from stepwell.store.cudart import Cudart, Send, libraries
from stepwell.store.pieces import Pieces


class Library:
    """Functions of the runtime that copy within this process. `codes` are their answers, 0 by default."""

    def __init__(self, version: int, batches: bool = True) -> None:
        self.version = version
        self.codes: dict[str, int] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        if batches:
            self.cudaMemcpyBatchAsync = self._batch

    def cudaRuntimeGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def _batch(self, targets: Any, sources: Any, sizes: Any, count: Any, attributes: Any, *rest: Any) -> int:
        self.calls.append(("batch", (attributes._obj.order, attributes._obj.flags, len(rest), rest[-1].value)))
        arrays = [(ctypes.c_uint64 * count.value).from_address(array.value) for array in (targets, sources, sizes)]
        for target, source, size in zip(*arrays, strict=True):
            ctypes.memmove(target, source, size)
        return self.codes.get("batch", 0)

    def cudaMemcpyAsync(self, target: Any, source: Any, size: Any, kind: Any, stream: Any) -> int:
        self.calls.append(("one", (kind.value, stream.value)))
        ctypes.memmove(target, source, size.value)
        return 0

    def cudaHostRegister(self, address: Any, size: Any, flags: Any) -> int:
        self.calls.append(("register", (address.value, size.value, flags.value)))
        return self.codes.get("register", 0)

    def cudaHostUnregister(self, address: Any) -> int:
        self.calls.append(("unregister", (address.value,)))
        return 0

    def cudaDeviceGetPCIBusId(self, text: Any, length: Any, device: Any) -> int:
        text.value = b"0000:1B:00.0"
        return 0


SIXTEEN, EIGHT = np.arange(16, dtype=np.uint8), np.zeros(8, np.uint8)


def copied(send: Send) -> list[int]:
    """What two pieces of `SIXTEEN` have become in a target of eight bytes."""
    target = EIGHT.copy()
    at, source = target.ctypes.data, SIXTEEN.ctypes.data
    words = [np.array(pair, np.uint64) for pair in ((at + 4, at), (source + 12, source + 1), (4, 2))]
    send(Pieces(*words), 77)
    send(Pieces(*(word[:0] for word in words)), 77)  # nothing is no call: CUDA refuses it
    return target.tolist()


@pytest.mark.parametrize(("version", "arguments"), [(13_000, 3), (12_080, 4)])
def test_a_batch_is_one_call_in_the_form_of_its_version(version: int, arguments: int) -> None:
    library = Library(version)
    send, name = Cudart(library).sender()
    assert copied(send) == [1, 2, 0, 0, 12, 13, 14, 15]
    assert library.calls == [("batch", (1, 1, arguments, 77))] and name == "cudaMemcpyBatchAsync"


def test_without_batches_each_piece_is_a_call_and_the_name_says_so() -> None:
    library = Library(12_040, batches=False)
    send, name = Cudart(library).sender()
    assert copied(send) == [1, 2, 0, 0, 12, 13, 14, 15]
    assert library.calls == [("one", (4, 77))] * 2 and "needs CUDA 12.8" in name


def test_a_refusal_is_an_error_with_its_number() -> None:
    library = Library(13_000)
    library.codes = {"batch": 1, "register": 712}
    cudart = Cudart(library)
    with pytest.raises(StoreError, match=r"cudaMemcpyBatchAsync failed with CUDA error 1$"):
        copied(cudart.sender()[0])
    with pytest.raises(StoreError, match="cudaHostRegister failed with CUDA error 712"):
        cudart.register(4096, 8192)


def test_memory_is_registered_for_all_devices_and_a_card_says_where_it_sits() -> None:
    library = Library(13_000)
    cudart = Cudart(library)
    cudart.register(4096, 8192)
    cudart.unregister(4096)
    assert library.calls == [("register", (4096, 8192, 1)), ("unregister", (4096,))]
    assert cudart.pci_id(0) == "0000:1b:00.0"


def test_a_runtime_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreError, match=r"libnowhere\.so\.1"):
        Cudart.load(["libnowhere.so.1"])


@pytest.mark.parametrize(("version", "first"), [("13.0", "13"), ("12.8", "12"), (None, "13")])
def test_the_library_that_torch_has_loaded_is_tried_first(version: str | None, first: str) -> None:
    assert libraries(version)[0] == f"libcudart.so.{first}" and len(set(libraries(version))) == 2
