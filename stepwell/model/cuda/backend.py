"""The backend for CUDA. It also runs on a CPU, in Triton's interpreter: slowly, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.model.batch import Batch, Longs, Memory, States
from stepwell.model.config import HybridConfig
from stepwell.model.cuda.forward import CudaForward, KernelLinear
from stepwell.model.cuda.graphs import DecodeGraphs
from stepwell.model.cuda.plans import Decodes, Uploader, padded_table, plan_prompts
from stepwell.model.cuda.prompts import choose
from stepwell.ops.linear import DenseStack, Linear, LinearStack
from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.triton.attention import splits_for
from stepwell.ops.triton.recurrent import TAPS
from stepwell.sched.step import LAST_DRAW


class CudaBackend:
    """A `Backend` of kernels. Passes of decodes alone are replayed from graphs, once `prepare` has captured them."""

    __slots__ = ("_device", "_frequencies", "_graphs", "_kernels", "_ring", "_shape", "_upload")

    def __init__(self, config: HybridConfig, dtype: torch.dtype, device: torch.device) -> None:
        """Raises ConfigError for a shape that the kernels are not written for."""
        shape, dim = config.shape, config.rotary_dim
        fault = unfit(config, dtype)
        if fault:
            raise ConfigError(fault)
        self._shape = shape
        self._device = device
        self._kernels = choose(device)
        powers = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
        self._frequencies = 1.0 / config.rope_theta**powers
        self._upload = Uploader(device)
        self._ring: Ring | None = None
        self._graphs: DecodeGraphs | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What computes, for people."""
        return ("decode and prompts: own Triton kernels", *self._kernels.names)

    def linear(self, weight: Tensor) -> Linear:
        return KernelLinear(weight.to(self._device).contiguous())

    def tied(self, table: Tensor) -> Linear:
        return KernelLinear(table)

    def stack(self, weights: Tensor) -> LinearStack:
        return DenseStack(weights.to(self._device).contiguous())

    def plan(self, batch: Batch, memory: Memory, checkpoints: States) -> CudaForward:
        decodes_only = batch.decodes == len(batch.slots)
        if decodes_only and self._graphs is not None and self._graphs.fit(batch, memory):
            return self._graphs.load(batch)
        rows = [batch.tokens, batch.positions, batch.page, batch.offset, batch.asked]
        tokens, positions, page, offset, asked = self._upload(rows)
        decodes = self._decodes(batch) if batch.decodes else None
        cos, sin = self.angles(positions)
        return CudaForward(
            memory, checkpoints, drawn(tokens, decodes, memory), page, offset, cos, sin, asked, self.ring(memory), decodes,
            None if decodes_only else plan_prompts(batch, memory.keys[0].shape[1], self._upload), self._kernels,
        )  # fmt: skip

    def prepare(
        self, memory: Memory, compute: Callable[[CudaForward], Tensor], rows: Sequence[int], width: int
    ) -> None:
        """Capture passes of `rows` decodes each, with block tables of `width` pages. `compute` runs a pass."""
        if self._device.type == "cuda":
            self._graphs = DecodeGraphs.capture(self, memory, compute, rows, width)

    def static(self, memory: Memory, ints: Tensor, table: Tensor) -> CudaForward:
        """A pass of decodes over tensors that stay: int64 [6, rows] of tokens, positions, pages, offsets, slots, lengths, and their
        table [rows, width]."""
        tokens, positions, page, offset, slots, lengths = ints.unbind()
        decodes = self._as_decodes(slots, table, lengths)
        cos, sin = self.angles(positions)
        checkpoints = States(memory.live.conv[:, :0], memory.live.recurrent[:, :0])
        return CudaForward(
            memory, checkpoints, drawn(tokens, decodes, memory), page, offset, cos, sin, None, self.ring(memory), decodes, None,
            self._kernels,
        )  # fmt: skip

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions.float().unsqueeze(1) * self._frequencies
        return angle.cos(), angle.sin()

    def ring(self, memory: Memory) -> Ring:
        slots, s = memory.live.conv.shape[1], self._shape
        if self._ring is None or self._ring.v.shape[0] != slots:
            self._ring = Ring.empty(slots, 1, s.key_heads, s.key_dim, s.value_heads, s.value_dim, self._device)
        return self._ring

    def upload(self, arrays: Sequence[Longs]) -> list[Tensor]:
        """int64 tensors on the device, without waiting for it."""
        return self._upload(arrays)

    def _decodes(self, batch: Batch) -> Decodes:
        count = batch.decodes
        width = max(len(table) for table in batch.tables[:count])
        table, slots, lengths = self._upload(
            [padded_table(batch.tables[:count], width, 0), batch.slots[:count], batch.starts[:count] + 1]
        )
        return self._as_decodes(slots, table, lengths)

    def _as_decodes(self, slots: Tensor, table: Tensor, lengths: Tensor) -> Decodes:
        zero = torch.zeros_like(slots)
        lanes = Lanes(slots, zero, zero, zero - 1, zero - 1)
        return Decodes(slots.shape[0], lanes, table, lengths, splits_for(slots.shape[0], self._shape.kv_heads))


def drawn(tokens: Tensor, decodes: Decodes | None, memory: Memory) -> Tensor:
    """The tokens, with what each slot drew last where that is asked for."""
    if decodes is None:
        return tokens
    given = tokens[: decodes.count]
    last = memory.draws.index_select(0, decodes.lanes.slots)
    first = torch.where(given == LAST_DRAW, last, given)
    return first if decodes.count == tokens.shape[0] else torch.cat((first, tokens[decodes.count :]))


def unfit(config: HybridConfig, dtype: torch.dtype) -> str:
    """Why the kernels cannot compute this model; empty if they can."""
    shape = config.shape
    dims = (shape.head_dim, shape.key_dim, shape.value_dim)
    if any(dim & (dim - 1) or dim < 16 for dim in dims):
        return f"the kernels take head dimensions that are powers of two and at least 16: this model has {dims}"
    if shape.conv_kernel != TAPS:
        return f"the kernels convolve {TAPS} inputs, this model {shape.conv_kernel}"
    if dtype == torch.float16:
        return "the kernels are for bfloat16 and float32"
    return ""
