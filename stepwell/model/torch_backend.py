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
    """A `Backend` without buffers of its own: every plan makes its tensors anew, but for views of the live states that decoded last."""

    __slots__ = ("_device", "_dtype", "_in_place", "_on_cpu", "_ranks", "_rotary", "_shape")

    def __init__(self, config: HybridConfig, dtype: torch.dtype, device: torch.device, ranks: Ranks = ALONE) -> None:
        """`config` is that of one rank."""
        self._ranks = ranks
        self._shape = config.shape
        self._dtype = dtype
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._in_place: InPlace | None = None
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
        tokens = self._upload(batch.tokens)
        if batch.tokens.min() < 0:
            slots = self._upload(np.repeat(batch.slots[: batch.decodes], batch.counts[: batch.decodes]))
            given = tokens[: len(slots)]
            given.copy_(torch.where(given == LAST_DRAW, memory.draws.index_select(0, slots), given))
            if memory.drafts.shape[1]:
                drafted = memory.drafts[slots, (FIRST_DRAFT - given).clamp(0, memory.drafts.shape[1] - 1)]
                given.copy_(torch.where(given <= FIRST_DRAFT, drafted, given))
        return tokens

    def _steps(self, batch: Batch, memory: Memory) -> Steps:
        """The slots' counts move on here: passes are planned in the order in which they run."""
        numbers, counts = batch.slots[: batch.decodes], batch.counts[: batch.decodes]
        slots, starts = self._upload(numbers), batch.starts[: batch.decodes]
        if not memory.rings:
            assert (counts == 1).all(), "drafts need slots that keep inputs"
            self._fold_at_once(slots, starts, counts, memory)
            return Steps(batch.decodes, self._states(numbers, memory.live) or slots)
        committed, pending = self._standing(slots, self._upload(starts), memory)
        memory.committed.index_copy_(0, slots, committed + pending)
        memory.pending.index_fill_(0, slots, 1)
        width, ends = int(counts.max()), np.cumsum(counts)
        padded = np.arange(int(ends[-1])) + np.repeat(np.arange(batch.decodes) * width - (ends - counts), counts)
        whole = len(padded) == width * batch.decodes
        none = torch.full_like(slots, -1)
        held = Held(Lanes(slots, committed, pending, none, none), width, None if whole else self._upload(padded))
        return Steps(len(padded), held)

    def _folds(self, batch: Batch, memory: Memory, starts: list[int], counts: list[int]) -> Folds | None:
        if not counts:
            return None
        slots, before = self._upload(batch.slots[batch.decodes :]), None
        firsts, more = batch.starts[batch.decodes :], batch.counts[batch.decodes :]
        if not memory.rings:
            self._fold_at_once(slots, firsts, more, memory)
        else:
            committed, pending = self._standing(slots, self._upload(firsts), memory)
            none = torch.full_like(slots, -1)
            before = Lanes(slots, committed, pending, none, none)
            memory.committed.index_copy_(0, slots, self._upload(firsts + more))
            memory.pending.index_fill_(0, slots, 0)
        cuts = [(sequence - batch.decodes, after) for sequence, after in batch.cuts.pairs()]
        return Folds(
            slots=slots,
            before=before,
            conv=ConvLayout.plan(counts, cuts, self._shape.conv_kernel, self._device),
            chunks=Chunks.plan(starts, counts, cuts, self._shape.value_heads, self._device),
        )

    def _states(self, slots: Longs, live: States) -> InPlace | None:
        """Views of these slots' states, if they lie side by side: mostly those of the pass before."""
        first, count = int(slots[0]), len(slots)
        if int(slots[-1]) - first != count - 1 or live.recurrent.dtype != torch.float32:
            return None
        if self._in_place is None or not self._in_place.shows(live, first, count):
            self._in_place = InPlace.of(live, first, count)
        return self._in_place

    def _fold_at_once(self, slots: Tensor, starts: Longs, counts: Longs, memory: Memory) -> None:
        """The states of slots without rings, which stand at `starts`, stand `counts` tokens further behind this pass."""
        if self._on_cpu:
            known = memory.committed.index_select(0, slots).numpy()
            if (known != starts).any():
                # a state from an image stands where the batch says, and nobody reads the last slot
                wrong = (known >= 0) & (known != starts) & (slots.numpy() < len(memory.committed) - 1)
                assert not wrong.any(), f"slots {slots[wrong]} stand at {known[wrong]}, not {starts[wrong]}"
        memory.committed.index_copy_(0, slots, self._upload(starts + counts))

    def _standing(self, slots: Tensor, starts: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Tokens that the slots' states have folded, and tokens pending in them. A state from an image stands where the batch says."""
        committed, pending = memory.committed.index_select(0, slots), memory.pending.index_select(0, slots)
        committed = torch.where(committed < 0, starts, committed)
        if self._on_cpu:
            wrong = (committed + pending != starts) & (slots < len(memory.committed) - 1)
            assert not wrong.any(), (
                f"slots {slots[wrong]} stand at {committed[wrong]} + {pending[wrong]}, not {starts[wrong]}"
            )
        return committed, pending

    def _upload(self, values: Longs) -> Tensor:
        there = torch.from_numpy(values)
        return there if self._on_cpu else there.to(self._device)
