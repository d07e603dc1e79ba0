"""A real decoder over poisoned memory: whatever the runner reads without having written it turns the logits to NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from stepwell.base.geometry import Ints
from stepwell.engine.compute.sampler import Sampler
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.model.backend import Forward, Output
from stepwell.model.batch import Behind, Memory
from stepwell.model.decoder import HybridDecoder
from stepwell.model.kv_scales import KvScales
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Carry, Cut, Fresh, Sample, StateStart, Step, StepResult, Work
from stepwell.store.device import DeviceArena, LiveStates, Precision

GREEDY = Sample(SamplingParams(), 0)


class Recorder:
    """A decoder that keeps the logits of its last pass."""

    def __init__(self, decoder: HybridDecoder) -> None:
        self.decoder = decoder
        self.backend = decoder.backend
        self.config = decoder.config
        self.last = self.hidden = torch.empty(0)

    def compute(self, forward: Forward) -> Output:
        output = self.decoder.compute(forward)
        self.last, self.hidden = output.logits.float().clone(), output.hidden.clone()
        return output

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(hidden)

    def guess(self, behind: Behind, memory: Memory) -> None:
        self.decoder.guess(behind, memory)


class Rig:
    """A runner with its arena; pages are handed out in random order and start, like the states, as `poison` bytes."""

    def __init__(
        self,
        decoder: HybridDecoder,
        *,
        pages: int = 160,
        slots: int = 6,
        poison: int = 0xFF,
        seed: int = 0,
        eos: tuple[int, ...] = (),
        state: torch.dtype = torch.float32,
        kv: str = "auto",
        block: int = 16,
        depth: int = 0,
        drafts: int = 0,
        scales: KvScales | None = None,
    ) -> None:
        """`drafts` need a depth of twice as many, and two."""
        precision = replace(Precision.of(decoder.dtype, kv), state=state)
        shape, device = decoder.config.shape, decoder.device
        self.geometry = shape.geometry(block, widths=precision.widths)
        self.arena = DeviceArena(pages, shape, self.geometry, precision, device)
        self.live = LiveStates(slots, shape, self.geometry, precision, device, depth)
        for memory in (self.arena.rows, self.live.recurrent, self.live.conv):
            memory.view(torch.uint8).fill_(poison)
        self.recorder = Recorder(decoder)
        recorder: Any = self.recorder
        self.runner = TorchRunner(recorder, self.arena, self.live, Sampler(eos), drafts, scales=scales)
        self._free = np.random.default_rng(seed).permutation(pages).astype(np.int32)

    def take(self, count: int) -> Ints:
        """Pages that nobody has."""
        pages, self._free = self._free[:count], self._free[count:]
        assert len(pages) == count
        return pages

    def table(self, tokens: int) -> Ints:
        """Pages for the KV of that many tokens."""
        return self.take(self.geometry.pages_for(tokens))

    def image(self) -> Ints:
        """Pages for one image."""
        return self.take(self.geometry.image_pages)

    def run(self, *works: Work) -> tuple[StepResult, list[torch.Tensor | None]]:
        """One step, and the logits of each work that samples."""
        result = self.runner.launch(Step(works)).result()
        decoding = sorted((i for i, w in enumerate(works) if len(w.tokens) == 1), key=lambda i: works[i].slot)
        order = [*decoding, *(i for i, w in enumerate(works) if len(w.tokens) > 1)]
        rows = iter(self.recorder.last)
        logits = {i: next(rows) for i in order if works[i].sample is not None}
        return result, [logits.get(i) for i in range(len(works))]

    def last(self, *works: Work) -> torch.Tensor:
        """Run each work as a step of its own; the logits of the last one."""
        for work in works:
            logits = self.run(work)[1][0]
        assert logits is not None
        return logits


def work(
    tokens: Ints,
    pages: Ints,
    start: int,
    end: int,
    state: StateStart | None = None,
    *,
    slot: int = 0,
    write_from: int = 0,
    cuts: Sequence[Cut] = (),
    sample: Sample | None = GREEDY,
    block: int = 16,
) -> Work:
    """Tokens `start` … `end` of a sequence; without a `state`, fresh at 0 and carried on elsewhere."""
    return Work(
        request_id=f"slot {slot}",
        slot=slot,
        root=0,
        start=start,
        tokens=tokens[start:end],
        pages=pages[: -(-end // block)],
        write_from=write_from,
        state=state if state is not None else Carry() if start else Fresh(),
        cuts=tuple(cuts),
        sample=sample,
    )
