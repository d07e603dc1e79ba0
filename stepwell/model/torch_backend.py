"""The backend in plain torch, for any device: the reference that others are held against, and what serves CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.model.backend import Forward, Output, Prepared
from stepwell.model.batch import NO_DRAWS, Ahead, Batch, Behind, Longs, Memory, States
from stepwell.model.config import HybridConfig
from stepwell.model.download import copied
from stepwell.model.drafter import Further
from stepwell.model.torch_forward import TorchForward
from stepwell.model.torch_plans import Carrying, Folds, Held, InPlace, Steps
from stepwell.ops.accept import Drawn, Forced, Standing, settle
from stepwell.ops.attention import PagedAttention, places
from stepwell.ops.chunks import Chunks
from stepwell.ops.conv import ConvLayout
from stepwell.ops.linear import Dense, DenseStack, Linear, LinearStack, placed
from stepwell.ops.pending import Lanes, delta_step
from stepwell.ops.ranks import ALONE, Ranks
from stepwell.ops.rotary import Rotary, frequencies
from stepwell.ops.scaled import Matrix, Scaled
from stepwell.sched.step import FIRST_DRAFT, LAST_DRAW


class TorchBackend:
    """A `Backend` without buffers of its own: every plan makes its tensors anew."""

    __slots__ = ("_device", "_dtype", "_ranks", "_rotary", "_shape")

    def __init__(self, config: HybridConfig, dtype: torch.dtype, device: torch.device, ranks: Ranks = ALONE) -> None:
        """`config` is that of one rank."""
        self._ranks = ranks
        self._shape = config.shape
        self._dtype = dtype
        self._device = device
        s = config.rope_stretch
        turned = frequencies(config.rotary_dim, config.rope_theta, s.factor, s.slowed)
        self._rotary = Rotary(config.shape.head_dim, turned, s.scale, device)

    def holds(self, rows: int, columns: int) -> bool:
        del rows, columns
        return False

    def linear(self, weight: Matrix, tail: Tensor | None = None) -> Linear:
        assert not isinstance(weight, Scaled) and tail is None, "FP8 is unpacked for this backend"
        return Dense(placed(weight, self._device))

    def tied(self, table: Tensor) -> Linear:
        return Dense(table)

    def stack(self, weights: Matrix) -> LinearStack:
        assert not isinstance(weights, Scaled), "FP8 is unpacked for this backend"
        return DenseStack(placed(weights, self._device))

    @property
    def names(self) -> tuple[str, ...]:
        return ("all operations: plain torch",)

    def prepare(self, memory: Memory, compute: Callable[[Forward], Output], wanted: Prepared) -> None:
        return

    def upload(self, arrays: Sequence[Longs]) -> list[Tensor]:
        return [self._upload(array) for array in arrays]

    def download(self, values: Tensor) -> Tensor:
        return copied(values)

    def plan(self, batch: Batch, memory: Memory, checkpoints: States) -> TorchForward:
        shape, device = self._shape, self._device
        starts, counts = batch.starts.tolist(), batch.counts.tolist()
        share, block = shape.heads // shape.kv_heads, memory.keys[0].shape[1]
        return TorchForward(
            ranks=self._ranks,
            memory=memory,
            checkpoints=checkpoints,
            tokens=self._tokens(batch, memory),
            angles=self._rotary(self._upload(batch.positions)),
            place=self._upload(places(batch.page, batch.offset, memory.keys[0])),
            attend=PagedAttention.plan(batch.tables, starts, counts, block, share, device, self._dtype),
            steps=self._steps(batch, memory) if batch.decodes else None,
            carrying=Carrying.of(batch, self._upload) if memory.live.hidden.shape[0] else None,
            folds=self._folds(batch, memory, starts[batch.decodes :], counts[batch.decodes :]),
            asked_rows=self._upload(batch.asked),
            draws=batch.draws,
            draw_slots=self._upload(batch.draws.slots),
            plain=batch.plain,
        )

    def words(self, head: Linear, count: int) -> Linear:
        return Dense(head.weight[:count]) if isinstance(head, Dense) else head

    def settle(
        self, tokens: Tensor, rows: Tensor, drawn: Drawn, decodes: int, standing: Standing, forced: Forced | None
    ) -> Tensor:
        return settle(tokens, rows, drawn, decodes, standing, forced)

    def look_ahead(self, ahead: Ahead, memory: Memory, states: States) -> None:
        slots, starts, after = (self._upload(array) for array in (ahead.slots, ahead.starts, ahead.after))
        every, none = torch.arange(len(ahead), device=self._device), torch.zeros_like(slots)
        lanes, furthest = Lanes(slots, starts, none, every, after), int(ahead.after.max())
        for i, ring in enumerate(memory.rings):
            looked = ring.v.new_empty(len(ahead) * furthest, *ring.v.shape[2:])
            delta_step(memory.live.recurrent[i], states.recurrent[i], lanes, every, ring, looked, fold_new=False)
        at = after.unsqueeze(1) + torch.arange(states.conv.shape[2], device=self._device)
        states.conv.copy_(memory.live.conv[:, slots.unsqueeze(1), at])

    def rehearse(self, memory: Memory, further: Further, wanted: Prepared) -> None:
        return

    def guess(self, behind: Behind, memory: Memory, further: Further) -> None:
        slots = self._upload(behind.slots)
        first, block = behind.starts + memory.pending.index_select(0, slots).cpu().numpy(), memory.keys[0].shape[1]
        tokens, hidden = memory.draws.index_select(0, slots), memory.live.hidden[0].index_select(0, slots)
        reach = np.array([len(table) for table in behind.tables]) * block
        for i in range(memory.drafts.shape[1]):
            left = np.flatnonzero(first + i < reach)
            if not len(left):
                return
            rows = self._upload(left)
            slots, tokens, hidden = (y.index_select(0, rows) for y in (slots, tokens, hidden))
            first, reach, tables = first[left], reach[left], tuple([behind.tables[at] for at in left])
            behind = Behind(behind.slots[left], first, tables)
            hidden, logits = further(self._glance(tokens, first + i, tables, memory), hidden)
            tokens = logits.argmax(-1)
            memory.drafts[:, i].index_copy_(0, slots, tokens)

    def _glance(self, tokens: Tensor, positions: Longs, tables: tuple[Ints, ...], memory: Memory) -> TorchForward:
        """A pass of attention layers alone over one token of each sequence."""
        shape, block, count, none = self._shape, memory.keys[0].shape[1], len(positions), np.empty(0, np.int64)
        share, place = shape.heads // shape.kv_heads, (self._device, self._dtype)
        pages = np.array([table[at] for table, at in zip(tables, positions // block, strict=True)], np.int64)
        return TorchForward(
            ranks=self._ranks,
            memory=memory,
            checkpoints=memory.live,
            tokens=tokens,
            angles=self._rotary(self._upload(positions)),
            place=self._upload(places(pages, positions % block, memory.keys[0])),
            attend=PagedAttention.plan(tables, positions.tolist(), [1] * count, block, share, *place),
            steps=None,
            carrying=None,
            folds=None,
            asked_rows=self._upload(none),
            draws=NO_DRAWS,
            draw_slots=self._upload(none),
            plain=True,
        )

    def _tokens(self, batch: Batch, memory: Memory) -> Tensor:
        tokens, counts = self._upload(batch.tokens), batch.counts[: batch.decodes]
        if (batch.tokens[: int(counts.sum())] < 0).any():
            slots = self._upload(np.repeat(batch.slots[: batch.decodes], counts))
            given = tokens[: len(slots)]
            given.copy_(torch.where(given == LAST_DRAW, memory.draws.index_select(0, slots), given))
            if memory.drafts.shape[1]:
                drafted = memory.drafts[slots, (FIRST_DRAFT - given).clamp(0, memory.drafts.shape[1] - 1)]
                given.copy_(torch.where(given <= FIRST_DRAFT, drafted, given))
        return tokens

    def _steps(self, batch: Batch, memory: Memory) -> Steps:
        """The slots' counts move on here: passes are planned in the order in which they run."""
        numbers = batch.slots[: batch.decodes]
        slots, starts = self.upload((numbers, batch.starts[: batch.decodes]))
        committed, pending = self._standing(slots, starts, memory)
        if not memory.rings:
            memory.committed.index_copy_(0, slots, committed + 1)
            assert (batch.counts[: batch.decodes] == 1).all(), "drafts need slots that keep inputs"
            first, live = int(numbers[0]), memory.live
            beside = int(numbers[-1]) - first == batch.decodes - 1 and live.recurrent.dtype == torch.float32
            return Steps(batch.decodes, InPlace.of(live, first, batch.decodes) if beside else slots)
        memory.committed.index_copy_(0, slots, committed + pending)
        memory.pending.index_fill_(0, slots, 1)
        counts = batch.counts[: batch.decodes]
        width, ends = int(counts.max()), np.cumsum(counts)
        padded = np.arange(int(ends[-1])) + np.repeat(np.arange(batch.decodes) * width - (ends - counts), counts)
        whole = len(padded) == width * batch.decodes
        none = torch.full_like(slots, -1)
        held = Held(Lanes(slots, committed, pending, none, none), width, None if whole else self._upload(padded))
        return Steps(len(padded), held)

    def _folds(self, batch: Batch, memory: Memory, starts: list[int], counts: list[int]) -> Folds | None:
        if not counts:
            return None
        slots = self._upload(batch.slots[batch.decodes :])
        first, ends = self._upload(batch.starts[batch.decodes :]), batch.starts + batch.counts
        committed, pending = self._standing(slots, first, memory)
        none = torch.full_like(slots, -1)
        memory.committed.index_copy_(0, slots, self._upload(ends[batch.decodes :]))
        memory.pending.index_fill_(0, slots, 0)
        cuts = [(sequence - batch.decodes, after) for sequence, after in batch.cuts.pairs()]
        return Folds(
            slots=slots,
            before=Lanes(slots, committed, pending, none, none) if memory.rings else None,
            conv=ConvLayout.plan(counts, cuts, self._shape.conv_kernel, self._device),
            chunks=Chunks.plan(starts, counts, cuts, self._shape.value_heads, self._device),
        )

    def _standing(self, slots: Tensor, starts: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Tokens that the slots' states have folded, and tokens pending in them. A state from an image stands where the batch says."""
        committed, pending = memory.committed.index_select(0, slots), memory.pending.index_select(0, slots)
        on_cpu = self._device.type == "cpu"
        if on_cpu and torch.equal(committed + pending, starts):
            return committed, pending
        committed = torch.where(committed < 0, starts, committed)
        if on_cpu:
            wrong = (committed + pending != starts) & (slots < len(memory.committed) - 1)
            assert not wrong.any(), (
                f"slots {slots[wrong]} stand at {committed[wrong]} + {pending[wrong]}, not {starts[wrong]}"
            )
        return committed, pending

    def _upload(self, values: Longs) -> Tensor:
        return torch.from_numpy(values).to(self._device)
