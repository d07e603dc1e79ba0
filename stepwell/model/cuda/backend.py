"""The backend for CUDA. It also runs on a CPU, in Triton's interpreter: slowly, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.model.backend import Output, Prepared
from stepwell.model.batch import Ahead, Batch, Behind, Longs, Memory, States
from stepwell.model.config import HybridConfig
from stepwell.model.cuda.forward import CudaForward
from stepwell.model.cuda.graphs import Columns, DecodeGraphs, Recorder
from stepwell.model.cuda.guesses import Guesses
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
from stepwell.model.cuda.spread import Spread, spread
from stepwell.model.download import copied, kernel_for, stored
from stepwell.model.drafter import Further
from stepwell.model.torch_plans import Carrying, rows_carried
from stepwell.ops.accept import Drawn, Forced, Standing
from stepwell.ops.linear import Linear, LinearStack
from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.ranks import ALONE, Ranks
from stepwell.ops.rotary import frequencies
from stepwell.ops.scaled import Matrix, Scaled, joined, packed
from stepwell.ops.triton.accept import settle
from stepwell.ops.triton.attention import splits_for
from stepwell.ops.triton.recurrent import TAPS, delta_step
from stepwell.sched.step import FIRST_DRAFT, LAST_DRAW


class CudaBackend:
    """A `Backend` of kernels. Passes of decodes alone are replayed from graphs, once `prepare` has captured them."""

    __slots__ = (
        "_decodes_of",
        "_device",
        "_frequencies",
        "_guesses",
        "_memory",
        "_pool",
        "_prompts_of",
        "_ring",
        "_scale",
        "_shape",
        "_store",
        "_tables",
        "_upload",
        "kernels",
        "ranks",
    )

    def __init__(self, config: HybridConfig, dtype: torch.dtype, device: torch.device, ranks: Ranks = ALONE) -> None:
        """`config` is that of one rank. Raises ConfigError for a shape that the kernels are not written for."""
        shape = config.shape
        fault = unfit(config, dtype)
        if fault:
            raise ConfigError(fault)
        self._shape = shape
        self._device = device
        self.ranks = ranks
        self.kernels = choose(device)
        stretch = config.rope_stretch
        turned = frequencies(config.rotary_dim, config.rope_theta, stretch.factor, stretch.slowed)
        self._scale = stretch.scale
        self._frequencies = turned.to(device)
        self._upload = Uploader(device)
        self._store = kernel_for(device)
        self._ring: Ring | None = None
        self._tables: Tables | None = None
        self._memory: Memory | None = None  # of recorded passes
        self._decodes_of: dict[int, DecodeGraphs] = {}  # by rows of a sequence
        self._guesses: Guesses | None = None
        self._pool: Any = None  # of memory that recorded passes share
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
        even = spread(batch, memory.drafts.shape[1], memory.keys[0].shape[0] - 1)
        recorded = self._recorded(even, memory, checkpoints, new)
        return recorded or self._as_it_comes(even, memory, checkpoints, new)

    def _recorded(self, even: Spread, memory: Memory, checkpoints: States, new: New) -> CudaForward | None:
        """The batch as recorded passes: one of its decodes, one or more of each prompt. None where they do not hold it."""
        batch, decodes = even.batch, self._decodes_of.get(even.width)
        prompts, decoding = batch.decodes < len(batch.slots), bool(batch.decodes)
        if memory is not self._memory or (decoding and not (decodes and decodes.fit(even))):
            return None
        if not prompts:
            return decodes.load(even, new) if decodes else None
        if self._prompts_of is None or not self._prompts_of.fit(batch):
            return None
        self.tables(memory, 1).store(*self._upload(new))
        graphs, pieces, draws = self._prompts_of, list(self._prompts_of.pieces(batch)), batch.draws
        first = decodes.load(even, NOTHING_NEW) if decoding and decodes else None
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

    def _as_it_comes(self, even: Spread, memory: Memory, checkpoints: States, new: New) -> CudaForward:
        batch, tables = even.batch, self.tables(memory, 1)
        draws, first, few = batch.draws, batch.decodes, len(batch.slots) > batch.decodes
        arrays = [*new, batch.tokens, batch.positions, batch.page, batch.offset, batch.asked, draws.slots]
        arrays += [batch.slots[:first], batch.starts[:first], even.counts]
        settings = [] if draws.greedy else setting_columns(draws)
        lanes = partial(self.pending, memory=memory)
        own, made = plan_prompts(batch, memory.keys[0].shape[1], lanes) if few else ([], None)
        carried = carrying(even) if memory.live.hidden.shape[0] else []
        sent = self._upload([*arrays, *settings, *carried, *own])
        cells, values, tokens, positions, page, offset, asked, drawers, slots, starts, counts = sent[: len(arrays)]
        tables.store(cells, values)
        decodes = self._decodes(slots, starts, counts, tables, memory, even.width) if first else None
        cos, sin = self.angles(positions)
        behind = sent[len(arrays) :]
        drawing = Drawing(len(draws), batch.plain, drawers, settings_from(behind[:SETTINGS]) if settings else None)
        behind = behind[len(settings) :]
        return CudaForward(
            memory, checkpoints, drawn(tokens, decodes, memory), page, offset, cos, sin, asked, self.ring(memory), decodes,
            made(behind[len(carried) :]) if made else None, self.kernels, drawing,
            Carrying(*behind[: len(carried)]) if carried else None, ranks=self.ranks,
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
        self._prompts_of, self._decodes_of, self._guesses = None, {}, None
        self.tables(memory, wanted.width)
        self._memory = memory
        recorder, pool = Recorder(compute, wanted.graphs and self._device.type == "cuda"), None
        prompts, decodes = None, {}
        if wanted.prompts and self.kernels.captures and own_type:
            prompts = PromptGraphs(self, memory, wanted.prompts, wanted.fixed)
            pool = prompts.record(recorder)
        if wanted.rows:
            for width in sorted({1, 1 + memory.drafts.shape[1]}, reverse=True):
                decodes[width] = DecodeGraphs(self, memory, wanted.rows, width)
                pool = decodes[width].record(recorder, pool)
        self._prompts_of, self._decodes_of, self._pool = prompts, decodes, pool

    def rehearse(self, memory: Memory, further: Further, wanted: Prepared) -> None:
        self._guesses = Guesses(self, memory, further, self._shape.vocab)
        self._guesses.record(wanted.rows, wanted.graphs and self._device.type == "cuda", self._pool)

    def guess(self, behind: Behind, memory: Memory, further: Further) -> None:
        guesses = self._guesses if memory is self._memory else None
        (guesses or Guesses(self, memory, further, self._shape.vocab)).draft(behind)

    def words(self, head: Linear, count: int) -> Linear:
        if not isinstance(head, KernelLinear) or isinstance(head.weight, Scaled):
            return head
        some = head.weight[: min(count, head.width)]
        if some.dtype != torch.bfloat16:
            return KernelLinear(some, some.shape[0])
        # a copy in FP8, which is read in half of the time: a draft need not be the likeliest token to the last bit
        return KernelLinear.of(joined([packed(part, 128, 128) for part in torch.split(some, 8192)], some.dtype))

    def settle(
        self, tokens: Tensor, rows: Tensor, drawn: Drawn, decodes: int, standing: Standing, forced: Forced | None
    ) -> Tensor:
        return settle(tokens, rows, drawn, decodes, standing, forced)

    def look_ahead(self, ahead: Ahead, memory: Memory, states: States) -> None:
        slots, starts, after = self._upload([ahead.slots, ahead.starts, ahead.after])
        every, none = torch.arange(len(ahead), device=self._device), torch.zeros_like(slots)
        lanes, live = Lanes(slots, starts, none, every, after), memory.live
        for pool, rungs, ring in zip(live.recurrent, states.recurrent, memory.rings, strict=True):
            looked = ring.v.new_empty(len(ahead) * (1 + memory.drafts.shape[1]), *ring.v.shape[2:])
            delta_step(pool, rungs, lanes, ring, looked, fold_new=False)
        at = after.unsqueeze(1) + torch.arange(states.conv.shape[2], device=self._device)
        states.conv.copy_(live.conv[:, slots.unsqueeze(1), at])

    def static(self, memory: Memory, columns: Columns, inputs: Tensor) -> CudaForward:
        """A pass of greedy decodes over tensors that stay."""
        rows, sequences = columns.split(inputs)
        tokens, positions, page, offset = rows[:4]
        slots, starts, counts, cells, values = sequences
        tables, width = self.tables(memory, 1), columns.width
        tables.store(cells, values)
        decodes = self._decodes(slots, starts, counts, tables, memory, width)
        carrying = None
        if memory.live.hidden.shape[0]:
            firsts = torch.arange(columns.sequences, device=inputs.device) * width
            kept = (slots, firsts) if width == 1 else (slots[:0], firsts[:0])
            before = torch.arange(rows.shape[1], device=inputs.device) + columns.sequences - 1
            before[firsts] = firsts // width
            carrying = Carrying(slots, before, *kept, firsts[:0])
        cos, sin = self.angles(positions)
        checkpoints = States(*(part[:, :0] for part in (memory.live.conv, memory.live.recurrent, memory.live.hidden)))
        return CudaForward(
            memory, checkpoints, drawn(tokens, decodes, memory), page, offset, cos, sin, None, self.ring(memory), decodes, None,
            self.kernels, Drawing(rows.shape[1], True, _each(slots, width), None), carrying, ranks=self.ranks,
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

    def _decodes(
        self, slots: Tensor, starts: Tensor, counts: Tensor, tables: Tables, memory: Memory, width: int
    ) -> Decodes:
        """The slots' counts move on here: passes are planned in the order in which they run. Behind drafts, they do once more."""
        lanes, table = self.lanes(slots, starts, memory), tables.rows.index_select(0, slots)
        if memory.rings:
            memory.pending.index_fill_(0, slots, 1)
        splits = splits_for(slots.shape[0], self._shape.kv_heads)
        return Decodes(slots.shape[0], width, lanes, table, starts + counts, counts if width > 1 else None, splits)

    def lanes(self, slots: Tensor, starts: Tensor, memory: Memory) -> Lanes:
        """How far these slots have got, which have `starts` tokens folded or pending."""
        zero = torch.zeros_like(slots)
        if not memory.rings:
            return Lanes(slots, zero, zero, zero - 1, zero - 1)
        pending = memory.pending.index_select(0, slots)
        return Lanes(slots, (starts - pending).clamp_min(0), pending, zero - 1, zero - 1)

    def pending(self, slots: Tensor, starts: Tensor, memory: Memory) -> Lanes | None:
        """What is pending in these slots, which fold it before anything else: then nothing is. None where nothing can be."""
        if not memory.rings:
            return None
        lanes = self.lanes(slots, starts, memory)
        memory.pending.index_fill_(0, slots, 0)
        return lanes


def drawn(tokens: Tensor, decodes: Decodes | None, memory: Memory) -> Tensor:
    """The tokens, with what each slot drew last, or what was drafted behind that, where it is asked for."""
    if decodes is None:
        return tokens
    rows, slots = decodes.rows, _each(decodes.lanes.slots, decodes.width)
    given = tokens[:rows]
    first = torch.where(given == LAST_DRAW, memory.draws.index_select(0, slots), given)
    if decodes.width > 1:
        drafted = memory.drafts[slots, (FIRST_DRAFT - given).clamp(0, memory.drafts.shape[1] - 1)]
        first = torch.where(given <= FIRST_DRAFT, drafted, first)
    return first if rows == tokens.shape[0] else torch.cat((first, tokens[rows:]))


def _each(slots: Tensor, width: int) -> Tensor:
    """Each of them for `width` rows."""
    return slots if width == 1 else slots.unsqueeze(1).expand(-1, width).flatten()


def carrying(even: Spread) -> tuple[Longs, ...]:
    """The fields of `Carrying`. With drafts no decode is known to end with its last row."""
    batch = even.batch
    return rows_carried(batch, np.arange(batch.decodes if even.width > 1 else 0, len(batch.slots)))


def unfit(config: HybridConfig, dtype: torch.dtype) -> str:
    """Why the kernels cannot compute this model; empty if they can."""
    shape = config.shape
    own = shape.architecture
    if not (own.recurrent and own.gated and own.qk_norm) or own.qk_norm_whole or own.recurrence.largest_beta != 1.0:
        return f"the kernels are for hybrid models with gated attention, not for a {own.model_type}"
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
