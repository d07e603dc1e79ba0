"""Computes steps with a real model: restores states, runs one forward pass, leaves rungs, samples.

A step happens in this order, so that works of one step never see each other: every restore, the forward pass, every
image, the draws. Images of cuts inside a work come out of that same pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.engine.batching import end_cuts, lay_out
from stepwell.engine.sampler import Chosen, Sampler, score_targets, scored
from stepwell.model.batch import Memory, States
from stepwell.model.decoder import HybridDecoder
from stepwell.ops.adjust import Rated
from stepwell.ops.sampling import NO_TOKEN
from stepwell.sched.step import Done, Fresh, FromImage, Pass, Step, StepResult, Work
from stepwell.store.device import DeviceArena, Images, LiveStates

_IMAGES_AT_ONCE = 8
"""Live states that are copied to pages together: an image may have 60 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchPass:
    """A launched step. `tokens` are those that `chosen` has drawn, on their way to the host until `ready`; None: they are there."""

    chosen: Chosen
    tokens: Tensor
    ready: torch.cuda.Event | None
    logits: tuple[tuple[int, Tensor], ...]
    targets: tuple[tuple[int, list[Rated]], ...]

    def result(self) -> StepResult:
        if self.ready is not None:
            self.ready.synchronize()
        logits = tuple((i, row.cpu().numpy()) for i, row in self.logits)
        targets = tuple((i, scored(parts)) for i, parts in self.targets)
        return replace(self.chosen.result(self.tokens.tolist()), logits=logits, target_scores=targets)


class TorchRunner:
    """The `Runner` that serves. Owns no bytes but the last draws: pages are the arena's, live states the running set's."""

    __slots__ = ("_arena", "_decoder", "_live", "_memory", "_sampler")

    def __init__(self, decoder: HybridDecoder, arena: DeviceArena, live: LiveStates, sampler: Sampler) -> None:
        self._decoder = decoder
        self._arena = arena
        self._live = live
        self._sampler = sampler
        draws = torch.full((live.slots + 1,), NO_TOKEN, dtype=torch.int64, device=arena.device)
        states = States(live.conv, live.recurrent)
        drafts = draws.new_zeros(live.slots + 1, 0)
        self._memory = Memory(
            arena.keys, arena.values, states, live.committed, live.pending, live.rings, draws, live.hidden, drafts
        )

    def prepare(self, rows: Sequence[int], width: int) -> None:
        """Make ready to decode batches of these sizes, with up to `width` pages each; before the first step."""
        self._decoder.prepare(self._memory, rows, width)

    @torch.inference_mode()
    def launch(self, step: Step) -> Pass:
        """Queue one step on the device. The CPU has computed it when this returns."""
        works = step.works
        if not works:
            return Done(StepResult(()))
        for work in works:
            self._restore(work)
        laid = lay_out(works, self._arena.geometry.block, self._arena.spare, held := bool(self._live.rings))
        inner = self._live.new_images(len(laid.inner))
        forward = self._decoder.backend.plan(laid.batch, self._memory, States(inner.conv, inner.recurrent))
        hidden = self._decoder.hidden(forward)
        self._put(laid.inner, inner)
        self._put_ends(end_cuts(works, held))
        count = len(laid.sampling)
        logits = self._decoder.logits(hidden[:count])
        kept = _kept(works, laid.sampling, logits)
        chosen = self._sampler.choose(works, laid.sampling, logits)
        # a row that broke drew no token: whatever is computed after it is dropped, but has to be a word of the vocabulary
        self._memory.draws[[works[i].slot for i in laid.sampling]] = chosen.tokens.clamp_min(0)
        scoring = [works[i] for i in laid.scoring]
        targets = score_targets(scoring, hidden[count:], self._decoder.logits)
        return TorchPass(chosen, *_on_its_way(chosen.tokens), kept, tuple(zip(laid.scoring, targets, strict=True)))

    def _restore(self, work: Work) -> None:
        if isinstance(work.state, Fresh):
            self._live.zero(work.slot)
        elif isinstance(work.state, FromImage):
            self._live.unpack(self._arena.get(work.state.pages), work.slot)

    def _put(self, pages: Sequence[Ints], images: Images) -> None:
        if pages:
            self._arena.put(np.concatenate(pages), images.rows)

    def _put_ends(self, cuts: Sequence[tuple[int, Ints]]) -> None:
        """Copy live states to pages; `cuts` as (slot, pages)."""
        for at in range(0, len(cuts), _IMAGES_AT_ONCE):
            part = cuts[at : at + _IMAGES_AT_ONCE]
            self._put([pages for _, pages in part], self._live.pack(np.array([slot for slot, _ in part])))


def _kept(works: Sequence[Work], sampling: tuple[int, ...], logits: Tensor) -> tuple[tuple[int, Tensor], ...]:
    """A copy of the logits that works want to see, by work: the sampler writes to its own."""
    rows = [(row, i) for row, i in enumerate(sampling) if (sample := works[i].sample) and sample.keep_logits]
    return tuple((i, logits[row].float().clone()) for row, i in rows)


def _on_its_way(tokens: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """`tokens` on the host, and when they have arrived there: nothing waits for the device here."""
    if tokens.device.type != "cuda":
        return tokens, None
    here = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    here.copy_(tokens, non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return here, ready
