"""The backend for CUDA. It also runs on a CPU, in Triton's interpreter: slowly, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.model.backend import Output, Prepared
from stepwell.model.batch import Batch, Longs, Memory, States
from stepwell.model.config import HybridConfig
from stepwell.model.cuda.forward import CudaForward
from stepwell.model.cuda.graphs import STATIC, DecodeGraphs, Recorder
from stepwell.model.cuda.matrices import KernelLinear, KernelStack, holds
from stepwell.model.cuda.plans import (
    NOTHING_NEW,
    SETTINGS,
    Decodes,
    Drawing,
    New,
    Tables,
    Uploader,
    plan_prompts,
    setting_columns,
    settings_from,
)
from stepwell.model.cuda.prompt_graphs import PromptGraphs
from stepwell.model.cuda.prompts import choose
from stepwell.model.download import copied, kernel_for, stored
from stepwell.ops.linear import Linear, LinearStack
from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.rotary import frequencies
from stepwell.ops.scaled import Matrix
from stepwell.ops.triton.attention import splits_for
from stepwell.ops.triton.recurrent import TAPS
from stepwell.sched.step import LAST_DRAW


class CudaBackend:
    """A `Backend` of kernels. Passes of decodes alone are replayed from graphs, once `prepare` has captured them."""

    __slots__ = (
        "_decodes_of",
        "_device",
        "_frequencies",
        "_memory",
        "_prompts_of",
        "_ring",
        "_scale",
        "_shape",
        "_store",
        "_tables",
        "_upload",
        "kernels",
    )

    def __init__(self, config: HybridConfig, dtype: torch.dtype, device: torch.device) -> None:
        """Raises ConfigError for a shape that the kernels are not written for."""
        shape = config.shape
        fault = unfit(config, dtype)
        if fault:
            raise ConfigError(fault)
        self._shape = shape
        self._device = device
        self.kernels = choose(device)
        stretch = config.rope_stretch
        turned = frequencies(config.rotary_dim, config.rope_theta, stretch.factor, stretch.low, stretch.high)
        self._scale = stretch.scale
        self._frequencies = turned.to(device)
        self._upload = Uploader(device)
        self._store = kernel_for(device)
        self._ring: Ring | None = None
        self._tables: Tables | None = None
        self._memory: Memory | None = None  # of recorded passes
        self._decodes_of: DecodeGraphs | None = None
        self._prompts_of: PromptGraphs | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What computes, for people."""
        way = "copied, behind saves" if self._store is None else "stored by a kernel"
        return ("decode and prompts: own Triton kernels", *self.kernels.names, f"drawn tokens: {way}")

    def holds(self, rows: int, columns: int) -> bool:
        return holds(rows, columns)

    def linear(self, weight: Matrix, tail: Tensor | None = None) -> Linear:
        return KernelLinear.of(weight, tail)

    def tied(self, table: Tensor) -> Linear:
        return KernelLinear(table, table.shape[0])

    def stack(self, weights: Matrix) -> LinearStack:
        return KernelStack(weights)

    def upload(self, arrays: Sequence[Longs]) -> list[Tensor]:
        return self._upload(arrays)

    def download(self, values: Tensor) -> Tensor:
        return copied(values) if self._store is None else stored(values, self._store)

    def fill(self, target: Tensor, array: Longs) -> None:
        """Write the array into `target`, int64 of as many elements, in the order of what the device has been told to do."""
        self._upload.into(target, [array])

    def plan(self, batch: Batch, memory: Memory, checkpoints: States) -> CudaForward:
        tables = self.tables(memory, max(map(len, batch.tables)))
        new = tables.new(batch)
        recorded = self._recorded(batch, memory, checkpoints, new)
        return recorded or self._as_it_comes(batch, memory, checkpoints, new)

    def _recorded(self, batch: Batch, memory: Memory, checkpoints: States, new: New) -> CudaForward | None:
        """The batch as recorded passes: one of its decodes, one or more of each prompt. None where they do not hold it."""
        prompts, decoding = batch.decodes < len(batch.slots), bool(batch.decodes)
        if memory is not self._memory or (decoding and not (self._decodes_of and self._decodes_of.fit(batch))):
            return None
        if not prompts:
            return self._decodes_of.load(batch, new) if self._decodes_of else None
        if self._prompts_of is None or not self._prompts_of.fit(batch):
            return None
        self.tables(memory, 1).store(*self._upload(new))
        graphs, pieces, draws = self._prompts_of, list(self._prompts_of.pieces(batch)), batch.draws
        first = self._decodes_of.load(batch, NOTHING_NEW) if decoding and self._decodes_of else None
        drawing = Drawing(len(draws), True, graphs.forward.drawing.slots, None)
        if not batch.plain:
            slots, *settings = self._upload([draws.slots, *setting_columns(draws)])
            drawing = Drawing(len(draws), False, slots, None if draws.greedy else settings_from(settings))

        def replay() -> Output:
            # graphs share their memory: what one leaves is overwritten by the next
            found = [first.replay().copied()] if first is not None and first.replay is not None else []
            for piece in pieces:
                output = graphs.run(piece, checkpoints, batch.plain)
                if piece.draws:
                    found.append(output if piece is pieces[-1] else output.copied())
            return Output.joined(found) if found else Output(output.hidden[:0], output.logits[:0], None)

        return replace(graphs.forward, drawing=drawing, replay=replay)

    def _as_it_comes(self, batch: Batch, memory: Memory, checkpoints: States, new: New) -> CudaForward:
        tables = self.tables(memory, 1)
        draws, first, few = batch.draws, batch.decodes, len(batch.slots) > batch.decodes
        arrays = [*new, batch.tokens, batch.positions, batch.page, batch.offset, batch.asked, draws.slots]
        arrays += [batch.slots[:first], batch.starts[:first] + 1]
        settings = [] if draws.greedy else setting_columns(draws)
        own, made = plan_prompts(batch, memory.keys[0].shape[1]) if few else ([], None)
        sent = self._upload([*arrays, *settings, *own])
        cells, values, tokens, positions, page, offset, asked, drawers, slots, lengths = sent[: len(arrays)]
        tables.store(cells, values)
        decodes = self._decodes(slots, lengths, tables) if first else None
        cos, sin = self.angles(positions)
        behind = sent[len(arrays) :]
        drawing = Drawing(len(draws), batch.plain, drawers, settings_from(behind[:SETTINGS]) if settings else None)
        return CudaForward(
            memory, checkpoints, drawn(tokens, decodes, memory), page, offset, cos, sin, asked, self.ring(memory), decodes,
            made(behind[len(settings) :]) if made else None, self.kernels, drawing,
        )  # fmt: skip

    def prepare(self, memory: Memory, compute: Callable[[CudaForward], Output], wanted: Prepared) -> None:
        if wanted.fixed and not self.kernels.captures:
            raise ConfigError(
                "--deterministic on CUDA needs FlashAttention-3: install tokenspeed-fa3, or leave the flag out"
            )
        # FlashAttention reads pages of the model's type alone: others are gathered and unpacked first, as many as there are
        own_type = memory.keys[0].dtype == memory.live.conv.dtype
        if wanted.fixed and not own_type:
            raise ConfigError("--deterministic on CUDA reads KV of the model's type: leave out --kv-cache-dtype fp8")
        # what was recorded before is not used any more, whatever comes of this
        self._prompts_of = self._decodes_of = None
        self.tables(memory, wanted.width)
        self._memory = memory
        recorder, pool = Recorder(compute, wanted.graphs and self._device.type == "cuda"), None
        prompts = decodes = None
        if wanted.prompts and self.kernels.captures and own_type:
            prompts = PromptGraphs(self, memory, wanted.prompts, wanted.fixed)
            pool = prompts.record(recorder)
        if wanted.rows:
            decodes = DecodeGraphs(self, memory, wanted.rows)
            decodes.record(recorder, pool)
        self._prompts_of, self._decodes_of = prompts, decodes

    def static(self, memory: Memory, inputs: Tensor) -> CudaForward:
        """A pass of greedy decodes over tensors that stay: `inputs` as in `graphs.Inputs`."""
        tokens, positions, page, offset, slots, lengths, cells, values = inputs[: len(STATIC)]
        tables = self.tables(memory, 1)
        tables.store(cells, values)
        decodes = self._decodes(slots, lengths, tables)
        cos, sin = self.angles(positions)
        checkpoints = States(*(part[:, :0] for part in (memory.live.conv, memory.live.recurrent, memory.live.hidden)))
        return CudaForward(
            memory, checkpoints, drawn(tokens, decodes, memory), page, offset, cos, sin, None, self.ring(memory), decodes, None,
            self.kernels, Drawing(inputs.shape[1], True, slots, None),
        )  # fmt: skip

    def tables(self, memory: Memory, width: int) -> Tables:
        """The block tables of this memory's slots, at least so wide."""
        slots = memory.live.conv.shape[1]
        if self._tables is None or self._tables.rows.shape[0] != slots:
            self._tables = Tables(slots, width, self._device)
        if self._tables.width < width:
            assert self._memory is None, f"{width} pages, where recorded passes read tables of {self._tables.width}"
            self._tables = self._tables.widened(2 * width)
        return self._tables

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions.float().unsqueeze(1) * self._frequencies
        cos, sin = angle.cos(), angle.sin()
        return (cos, sin) if self._scale == 1.0 else (cos * self._scale, sin * self._scale)

    def ring(self, memory: Memory) -> Ring:
        slots, s = memory.live.conv.shape[1], self._shape
        if self._ring is None or self._ring.v.shape[0] != slots:
            self._ring = Ring.empty(slots, 1, s.key_heads, s.key_dim, s.value_heads, s.value_dim, self._device)
        return self._ring

    def _decodes(self, slots: Tensor, lengths: Tensor, tables: Tables) -> Decodes:
        zero = torch.zeros_like(slots)
        lanes = Lanes(slots, zero, zero, zero - 1, zero - 1)
        table = tables.rows.index_select(0, slots)
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
    if any(shape.expert_layers) and shape.shared_width != shape.expert_width:
        widths = f"{shape.shared_width} and {shape.expert_width}"
        return f"the kernels take a shared expert as wide as the others: this model has {widths}"
    if dtype == torch.float16:
        return "the kernels are for bfloat16 and float32"
    return ""
