"""Computes steps with a real model: restores states, runs one forward pass, leaves rungs, samples.

A step happens in this order, so that works of one step never see each other: every restore, the forward pass, every
image, the draws. Images of cuts inside a work come out of that same pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from stepwell.engine.batching import inner_cuts, plan_batch
from stepwell.engine.sampler import Sampler, score_targets
from stepwell.model.batch import Memory, States
from stepwell.model.decoder import HybridDecoder
from stepwell.sched.step import Cut, Fresh, FromImage, Logits, Step, StepResult, Work
from stepwell.store.device import DeviceArena, Image, LiveStates


@dataclass(frozen=True, slots=True)
class _Left:
    """An image that the pass fills, and where it goes."""

    cut: Cut
    image: Image


class TorchRunner:
    """The `Runner` that serves. Owns no bytes: pages are the arena's, live states the running set's."""

    __slots__ = ("_arena", "_decoder", "_live", "_memory", "_sampler")

    def __init__(self, decoder: HybridDecoder, arena: DeviceArena, live: LiveStates, sampler: Sampler) -> None:
        self._decoder = decoder
        self._arena = arena
        self._live = live
        self._sampler = sampler
        self._memory = Memory(arena.keys, arena.values, States(live.conv, live.recurrent))

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Compute one step; `repeat` is 1 here."""
        assert step.repeat == 1, step.repeat
        if not step.works:
            return StepResult(())
        for work in step.works:
            self._restore(work)
        left = {i: [_Left(cut, self._live.new_image()) for cut in inner_cuts(w)] for i, w in enumerate(step.works)}
        planned = plan_batch(
            step,
            {i: [States(one.image.conv, one.image.recurrent) for one in many] for i, many in left.items()},
            self._arena.geometry.block,
            self._decoder.kernels,
            self._arena.device,
        )
        hidden = self._decoder.hidden(planned.batch, self._memory)
        for i, work in enumerate(step.works):
            self._leave(work, left[i])
        count = len(planned.sampling)
        logits = self._decoder.logits(hidden[:count])
        kept = _kept(step, planned.sampling, logits)
        result = replace(self._sampler.choose(step, planned.sampling, logits), logits=kept)
        if not planned.scoring:
            return result
        scores = score_targets([step.works[i] for i in planned.scoring], hidden[count:], self._decoder.logits)
        return replace(result, target_scores=tuple(zip(planned.scoring, scores, strict=True)))

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


def _kept(step: Step, sampling: tuple[int, ...], logits: Tensor) -> tuple[tuple[int, Logits], ...]:
    """A copy of the logits that works want to see, by work: the sampler writes to its own."""
    rows = [(row, i) for row, i in enumerate(sampling) if (sample := step.works[i].sample) and sample.keep_logits]
    return tuple((i, np.array(logits[row].float().cpu().numpy())) for row, i in rows)
