"""Which backend computes a model on a device."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TypeAlias

import torch

from stepwell.model.backend import Backend
from stepwell.model.config import HybridConfig
from stepwell.model.torch_backend import TorchBackend
from stepwell.ops.ranks import ALONE, Ranks

MakeBackend: TypeAlias = Callable[[HybridConfig, torch.dtype, torch.device, Ranks], Backend]
"""From what one rank computes of a model, in which type, where, and together with whom."""


def backend_for(config: HybridConfig, dtype: torch.dtype, device: torch.device, ranks: Ranks = ALONE) -> Backend:
    """Kernels where there is a GPU, Triton is installed, and they are written for such a model; else plain torch.

    In float32 and float16 a GPU computes in plain torch too: libraries for prompts take bfloat16, and that is what was tried.
    """
    if has_kernels(config, dtype, device):
        made = importlib.import_module("stepwell.model.cuda.backend").CudaBackend
        backend: Backend = made(config, dtype, device, ranks)
        return backend
    return TorchBackend(config, dtype, device, ranks)


def has_kernels(config: HybridConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether kernels compute such a model on this device."""
    if device.type != "cuda" or dtype != torch.bfloat16 or importlib.util.find_spec("triton") is None:
        return False
    return not importlib.import_module("stepwell.model.cuda.backend").unfit(config, dtype)


def sizes_up_to(rows: int) -> tuple[int, ...]:
    """1, 2, 4, then multiples of 8, up to and including `rows`.

    >>> sizes_up_to(20)
    (1, 2, 4, 8, 16, 20)
    """
    return tuple(sorted({n for n in (1, 2, 4, *range(8, rows, 8)) if n < rows} | {rows}))
