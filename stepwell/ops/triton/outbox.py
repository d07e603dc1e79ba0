"""Values that the device hands to the host by storing them there, so that they wait for no copy engine that is busy with pages."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit(do_not_specialize=["COUNT"])
def _store_kernel(values, out, COUNT, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(values + i, mask=i < COUNT), mask=i < COUNT)


def store(values: Tensor, out: Tensor) -> None:
    """Copy `values` to `out`, both contiguous and of the same size and type. `out` may be page-locked memory of the host: it holds the
    values once whatever follows on the stream has begun, an event for instance."""
    assert (
        values.is_contiguous() and out.is_contiguous() and values.numel() == out.numel() and values.dtype == out.dtype
    )
    count = values.numel()
    if count:
        _store_kernel[(triton.cdiv(count, _BLOCK),)](values, out, count, BLOCK=_BLOCK)
