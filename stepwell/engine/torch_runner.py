"""Computes steps with a real model: restores states, runs one forward pass, leaves rungs, samples.

A step happens in this order, so that works of one step never see each other: every restore, the forward pass, every
image, the draws. Images of cuts inside a work come out of that same pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepwell.engine.batching import inner_cuts, plan_batch
from stepwell.engine.sampler import Chosen, Sampler, score_targets, scored
from stepwell.model.batch import Memory, States
from stepwell.model.decoder import HybridDecoder
from stepwell.ops.adjust import Rated
from stepwell.ops.sampling import NO_TOKEN
from stepwell.sched.step import LAST_DRAW, Cut, Done, Fresh, FromImage, Pass, Step, StepResult, Work
from stepwell.store.device import DeviceArena, Image, LiveStates


@dataclass(frozen=True, slots=True)
class _Left:
    """An image that the pass fills, and where it goes."""

    cut: Cut
    image: Image


@dataclass(frozen=True, slots=True)
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

    __slots__ = ("_arena", "_decoder", "_draws", "_live", "_memory", "_sampler")

    def __init__(self, decoder: HybridDecoder, arena: DeviceArena, live: LiveStates, sampler: Sampler) -> None:
        self._decoder = decoder
        self._arena = arena
        self._live = live
        self._sampler = sampler
        self._memory = Memory(arena.keys, arena.values, States(live.conv, live.recurrent))
        self._draws = torch.full((live.slots,), NO_TOKEN, dtype=torch.int64, device=arena.device)

    @torch.inference_mode()
    def launch(self, step: Step) -> Pass:
        """Queue one step on the device. The CPU has computed it when this returns."""
        works = step.works
        if not works:
            return Done(StepResult(()))
        for work in works:
            self._restore(work)
        left = {i: [_Left(cut, self._live.new_image()) for cut in inner_cuts(w)] for i, w in enumerate(works)}
        planned = plan_batch(
            step,
            {i: [States(one.image.conv, one.image.recurrent) for one in many] for i, many in left.items()},
            self._arena.geometry.block,
            self._decoder.kernels,
            self._arena.device,
        )
        batch = planned.batch
        if batch.decodes is not None:
            given = batch.tokens[: batch.decodes.count]
            given.copy_(torch.where(given == LAST_DRAW, self._draws[batch.decodes.slots], given))
        hidden = self._decoder.hidden(batch, self._memory)
        for i, work in enumerate(works):
            self._leave(work, left[i])
        count = len(planned.sampling)
        logits = self._decoder.logits(hidden[:count])
        kept = _kept(works, planned.sampling, logits)
        chosen = self._sampler.choose(works, planned.sampling, logits)
        self._draws[[works[i].slot for i in planned.sampling]] = chosen.tokens
        scoring = [works[i] for i in planned.scoring]
        targets = score_targets(scoring, hidden[count:], self._decoder.logits)
        return TorchPass(chosen, *_on_its_way(chosen.tokens), kept, tuple(zip(planned.scoring, targets, strict=True)))

    def _restore(self, work: Work) -> None:
        if isinstance(work.state, Fresh):
            self._live.zero(work.slot)
        elif isinstance(work.state, FromImage):
            self._live.unpack(self._arena.get(work.state.pages), work.slot)

    def _leave(self, work: Work, inner: list[_Left]) -> None:
        """Write the work's images: those of the pass, and the live state where a cut stands at the end."""
        for one in inner:
            self._arena.put(one.cut.pages, one.image.rows)
        for cut in work.cuts:
            if cut.position == work.start + len(work.tokens):
                self._arena.put(cut.pages, self._live.pack(work.slot).rows)


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
