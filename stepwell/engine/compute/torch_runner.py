"""Computes steps with a real model: restores states, runs one forward pass, leaves rungs, draws tokens.

A step happens in this order, so that works of one step never see each other: every restore, the forward pass, every
image, the draws. Images of cuts inside a work come out of that same pass.

Launching a step waits for nothing that the device computes: what the device has to know is sent through `Backend.upload`, what it has
drawn is read in `TorchPass.result` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from stepwell.engine.compute.batching import Cutting, Laid, Layout, lay_out
from stepwell.engine.compute.drafting import Drafting
from stepwell.engine.compute.sampler import Chosen, Sampler, score_targets, scored
from stepwell.engine.compute.wishes import Wishes
from stepwell.model.backend import Backend, Prepared
from stepwell.model.batch import Memory, States
from stepwell.model.decoder import HybridDecoder
from stepwell.model.drafter import DraftBackend
from stepwell.model.kv_scales import KvScales
from stepwell.ops.adjust import Rated
from stepwell.ops.sampling import NO_TOKEN
from stepwell.sched.step import Done, Fresh, FromImage, Pass, Step, StepResult, Work
from stepwell.store.device import DeviceArena, Images, LiveStates
from stepwell.store.images import image_copies

_IMAGES_AT_ONCE = 8
"""States that are looked at ahead together: each may have 60 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchPass:
    """A launched step of so many works. `tokens` are those that `chosen` has drawn, on their way to the host until `ready`; None: they
    are there."""

    works: int
    chosen: Chosen
    tokens: Tensor
    ready: torch.cuda.Event | None
    logits: tuple[tuple[int, Tensor], ...]
    targets: tuple[tuple[int, list[Rated]], ...]

    def result(self) -> StepResult:
        if self.ready is not None:
            self.ready.synchronize()
        told = self.chosen.result(self.works, self.tokens.tolist())
        if not self.logits and not self.targets:
            return told
        logits = tuple((i, row.cpu().numpy()) for i, row in self.logits)
        targets = tuple((i, scored(parts)) for i, parts in self.targets)
        return replace(told, logits=logits, target_scores=targets)


class TorchRunner:
    """The `Runner` that serves. Owns no bytes but the last draws: pages are the arena's, live states the running set's.

    drafted   behind the drafts of the last step that drafted. They are made behind that step's result, and write keys and values to pages
              that may be free by then: what else is to write there waits for this event
    """

    __slots__ = (
        "_arena",
        "_decoder",
        "_drafting",
        "_images",
        "_layout",
        "_live",
        "_memory",
        "_sampler",
        "_wishes",
        "drafted",
    )

    def __init__(
        self,
        decoder: HybridDecoder,
        arena: DeviceArena,
        live: LiveStates,
        sampler: Sampler,
        drafts: int = 0,
        forced: float | None = None,
        scales: KvScales | None = None,
    ) -> None:
        """`drafts` tokens are drafted behind each that is drawn; the decoder must be one that drafts, and the live states keep inputs.
        `forced`: the share of them that is accepted whatever is drawn, for benches. `scales` are those of KV in FP8."""
        self._decoder = decoder
        self._arena = arena
        self._live = live
        self._images = image_copies(arena, live, decoder.backend.upload)
        self._sampler = sampler
        self._layout = Layout(arena.geometry.block, arena.spare, bool(live.rings), apart=drafts > 0)
        self._wishes = Wishes(live.slots + 1)
        draws = torch.full((live.slots + 1,), NO_TOKEN, dtype=torch.int64, device=arena.device)
        states = States(live.conv, live.recurrent, live.hidden)
        guesses = draws.new_zeros(live.slots + 1, drafts)
        self._memory = Memory(
            arena.keys, arena.values, states, live.committed, live.pending, live.rings, draws, guesses, scales
        )
        self._drafting = Drafting(decoder, self._memory, forced) if drafts else None
        self.drafted: torch.cuda.Event | None = None

    def prepare(self, wanted: Prepared) -> None:
        """Compile and record what steps will need; before the first."""
        self._layout = replace(self._layout, apart=wanted.fixed or self._drafting is not None)
        self._decoder.prepare(self._memory, wanted)

    @torch.inference_mode()
    def launch(self, step: Step) -> Pass:
        """Queue one step on the device. The CPU has computed it when this returns."""
        if not len(step):
            return Done(StepResult(()))
        backend = self._decoder.backend
        laid = lay_out(step, self._layout, self._wishes)
        self._restore(step.parts)
        inner = self._live.new_images(len(laid.inner))
        forward = backend.plan(laid.batch, self._memory, States(inner.conv, inner.recurrent, inner.hidden))
        output = self._decoder.compute(forward)
        self._leave(laid, inner)
        self._look_ahead(laid.ahead, output.hidden)
        kept = tuple((laid.asked.works[row], output.logits[row].float().clone()) for row in laid.asked.kept)
        chosen = self._sampler.choose(laid.asked, output, forward.draw, backend.upload)
        rows, works = output.hidden[len(laid.asked.works) :], [work for _, work in laid.scoring]
        rated = score_targets(works, rows, self._decoder.logits, backend.upload)
        targets = tuple((i, parts) for (i, _), parts in zip(laid.scoring, rated, strict=True))
        tokens = chosen.tokens
        if self._drafting is not None:
            tokens = self._drafting.settle(laid, output.hidden, tokens)
        told = TorchPass(len(step), chosen, *_on_its_way(tokens, backend), kept, targets)
        if self._drafting is not None and step.drafting:
            self._drafting.draft(laid)
            self.drafted = _recorded(self._arena.device)
        return told

    def _restore(self, parts: Sequence[Work]) -> None:
        """Set the live states of parts of prompts that do not carry theirs on."""
        self._images.load([(work.slot, work.state.pages) for work in parts if isinstance(work.state, FromImage)])
        for work in parts:
            if isinstance(work.state, Fresh):
                self._live.zero(work.slot)

    def _leave(self, laid: Laid, inner: Images) -> None:
        """Copy states to the pages of rungs: those at cuts inside works from `inner`, the others from the live states."""
        if laid.inner:
            (pages,) = self._decoder.backend.upload([np.concatenate(laid.inner).astype(np.int64)])
            self._arena.put(pages, inner.rows)
        self._images.save(laid.ends)

    def _look_ahead(self, cutting: Cutting, rows: Tensor) -> None:
        """Copy states behind tokens that are not folded yet to the pages of rungs; the first of `rows` are those of the batch."""
        backend = self._decoder.backend
        for at in range(0, len(cutting.pages), _IMAGES_AT_ONCE):
            part = cutting.part(at, _IMAGES_AT_ONCE)
            assert isinstance(backend, DraftBackend), "live slots that keep inputs have a backend that knows them"
            before, pages = backend.upload([part.rows, np.concatenate(part.pages).astype(np.int64)])
            images = self._live.new_images(len(part.pages))
            backend.look_ahead(part.ahead, self._memory, States(images.conv, images.recurrent, images.hidden))
            if self._drafting is not None:
                images.hidden[0].copy_(rows.index_select(0, before))
            self._arena.put(pages, images.rows)


def _on_its_way(tokens: Tensor, backend: Backend) -> tuple[Tensor, torch.cuda.Event | None]:
    """`tokens` on the host, and when they have arrived there: nothing waits for the device here."""
    if tokens.device.type != "cuda":
        return tokens, None
    return backend.download(tokens), _recorded(tokens.device)


def _recorded(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that the device has been told to do; None where it does it at once."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
