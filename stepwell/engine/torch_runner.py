"""Computes steps with a real model: restores states, runs one forward pass, leaves rungs, samples.

A step happens in this order, so that works of one step never see each other: every restore, the forward pass, every
image, the draws. Images of cuts inside a work come out of that same pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.engine.batching import inner_cuts, plan_batch
from stepwell.model.batch import Memory, States
from stepwell.model.decoder import HybridDecoder
from stepwell.ops.sampling import Draw, sample
from stepwell.sched.step import Cut, Fresh, FromImage, Sample, Step, StepResult, Work
from stepwell.store.device import DeviceArena, Image, LiveStates

_BROKEN = "the model's logits for this request were not finite: send it again without reading the cache"


@dataclass(frozen=True, slots=True)
class _Left:
    """An image that the pass fills, and where it goes."""

    cut: Cut
    image: Image


class TorchRunner:
    """The `Runner` that serves. Owns no bytes: pages are the arena's, live states the running set's."""

    __slots__ = ("_arena", "_decoder", "_eos", "_live", "_memory")

    def __init__(
        self, decoder: HybridDecoder, arena: DeviceArena, live: LiveStates, eos_token_ids: tuple[int, ...] = ()
    ) -> None:
        """`eos_token_ids` are not sampled before a request's `min_tokens`."""
        self._decoder = decoder
        self._arena = arena
        self._live = live
        self._eos = eos_token_ids
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
        logits = self._decoder.forward(planned.batch, self._memory)
        for i, work in enumerate(step.works):
            self._leave(work, left[i])
        return self._sampled(step, planned.sampling, logits)

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

    def _sampled(self, step: Step, sampling: tuple[int, ...], logits: Tensor) -> StepResult:
        samples = [step.works[i].sample for i in sampling]
        draws = [self._draw(s, logits.shape[1]) for s in samples if s is not None]
        tokens = dict(zip(sampling, sample(logits, draws), strict=True))
        return StepResult(
            tuple(() if (token := tokens.get(i)) is None else (token,) for i in range(len(step.works))),
            tuple((i, _BROKEN) for i in sorted(tokens) if tokens[i] is None),
        )

    def _draw(self, one: Sample, vocab: int) -> Draw:
        params = one.params
        banned: tuple[int, ...] = ()
        if one.index < params.min_tokens:
            ends = params.stop_token_ids + (() if params.ignore_eos else self._eos)
            banned = tuple(token for token in ends if 0 <= token < vocab)
        return Draw(params.temperature, params.top_k, params.top_p, params.seed, one.index, banned)
