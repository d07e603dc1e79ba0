"""Programmatic dependent launch: the blocks of a kernel start while those of the one before it drain.

A kernel waits until the one before has finished and its results can be read, and then lets the next one start. What no kernel
of the step writes, such as weights, may be read before. Hopper and newer; elsewhere kernels follow each other as ever.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW, _SOME = 4, 64
_LATE, _EARLY = 1, 2


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """To be called before anything is read that an earlier kernel wrote, and before anything is written."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        if OVERLAP == 2:
            tl.extra.cuda.gdc_launch_dependents()


def overlap(x: Tensor, rows: int) -> dict[str, int | bool]:
    """Launch options for a kernel that calls `follow`, works on the device of `x`, and has `rows` rows to do.

    Very few rows are bound by latency: there the next kernel starts as soon as this one's blocks are all running (7 to 14 % of a step
    of one row). With more rows blocks that wait would take the place of blocks that work: there it starts when these end (1 to 4 % of
    a step of 8 or 64 rows). Beyond that nothing is to be gained.
    """
    if rows <= _SOME and x.is_cuda and _capable(x.device):
        return {"OVERLAP": _EARLY if rows <= _FEW else _LATE, "launch_pdl": True}
    return {"OVERLAP": 0}


@cache
def _capable(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
