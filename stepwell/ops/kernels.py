"""The operations that a backend provides, and the backend in plain torch.

The signatures are those of the fast kernels (plan once, run per layer; states in and out in float32; pages as strided
views), so that another backend is another class with these methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.ops.attention import DecodeAttention, PrefillAttention, write_kv
from stepwell.ops.conv import causal_conv, conv_update
from stepwell.ops.delta_rule import DeltaInputs, delta_rule, delta_update


class Attend(Protocol):
    """Attention planned for a set of queries: q [n, heads, head_dim] and one layer's pages → [n, heads, head_dim]."""

    def __call__(self, q: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor: ...


class Kernels(Protocol):
    """What the model needs of a backend; shapes and meaning as in the functions that `TorchKernels` forwards to."""

    def plan_prefill(self, pages: Ints, start: int, count: int) -> Attend: ...

    def plan_decode(self, tables: Sequence[Ints], lengths: Sequence[int], block: int) -> Attend: ...

    def write_kv(
        self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, page: Tensor, offset: Tensor
    ) -> None: ...

    def conv(
        self, x: Tensor, weight: Tensor, state: Tensor, cuts: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[Tensor]]: ...

    def conv_update(self, x: Tensor, weight: Tensor, state: Tensor) -> Tensor: ...

    def delta_rule(
        self, x: DeltaInputs, state: Tensor, start: int, cuts: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[Tensor]]: ...

    def delta_update(self, x: DeltaInputs, state: Tensor) -> Tensor: ...


class TorchKernels:
    """Plain torch on any device."""

    __slots__ = ("_device",)

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def plan_prefill(self, pages: Ints, start: int, count: int) -> Attend:
        return PrefillAttention.plan(pages, start, count, self._device)

    def plan_decode(self, tables: Sequence[Ints], lengths: Sequence[int], block: int) -> Attend:
        return DecodeAttention.plan(tables, lengths, block, self._device)

    write_kv = staticmethod(write_kv)
    conv = staticmethod(causal_conv)
    conv_update = staticmethod(conv_update)
    delta_rule = staticmethod(delta_rule)
    delta_update = staticmethod(delta_update)
