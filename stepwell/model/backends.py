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

MakeBackend: TypeAlias = Callable[[HybridConfig, torch.dtype, torch.device], Backend]


def backend_for(config: HybridConfig, dtype: torch.dtype, device: torch.device) -> Backend:
    """Kernels where there is a GPU, Triton is installed, and they are written for such a model; else plain torch.

    In float32 and float16 a GPU computes in plain torch too: libraries for prompts take bfloat16, and that is what was tried.
    """
    if device.type == "cuda" and dtype == torch.bfloat16 and importlib.util.find_spec("triton") is not None:
        cuda = importlib.import_module("stepwell.model.cuda.backend")
        if not cuda.unfit(config, dtype):
            backend: Backend = cuda.CudaBackend(config, dtype, device)
            return backend
    return TorchBackend(config, dtype, device)


def sizes_up_to(rows: int) -> tuple[int, ...]:
    """1, 2, 4, then multiples of 8, up to and including `rows`.

    >>> sizes_up_to(20)
    (1, 2, 4, 8, 16, 20)
    """
    return tuple(sorted({n for n in (1, 2, 4, *range(8, rows, 8)) if n < rows} | {rows}))
