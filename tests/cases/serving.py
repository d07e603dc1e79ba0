"""Small engines on the tell-tale, and requests served by them from start to end."""

from __future__ import annotations

from collections import deque

import numpy as np

from stepwell.base.clock import VirtualClock
from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Admitted, Finished, Request, SamplingParams, Tokens
from stepwell.testing import telltale
from stepwell.testing.faults import FaultPlan, InstantMover
from stepwell.testing.harness import Harness
from tests.cache.builders import forget, numbers

VOCAB = 1000
PROMPT = numbers(40)
DEAR = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=1e-6)
"""Prefill so slow that everything is worth a write to disk."""


def rules(
    pages: int = 64,
    host: int = 128,
    *,
    grid: int = 4,
    image: int = 1,
    chunk: int = 16,
    whole: bool = False,
    interval: int = 4096,
    clean: float = 0.3,
    min_load: int | None = 0,
    ghosts: int = 1 << 20,
    disk: int = 0,
) -> CacheConfig:
    """Blocks of 4 tokens."""
    return CacheConfig(
        telltale.geometry(4, grid, image),
        device_pages=pages,
        host_slots=host,
        disk_slots=disk,
        chunk=chunk,
        whole_chunks=whole,
        interval=interval,
        min_load_tokens=min_load,
        clean_share=clean,
        ghost_blocks=ghosts,
    )


def engine(
    cache: CacheConfig | None = None,
    faults: FaultPlan | None = None,
    *,
    seqs: int = 4,
    budget: int = 64,
    rolling: int = 8,
    costs: Costs | None = None,
    coalesce: bool = False,
    ahead: bool = False,
) -> Harness:
    """An engine with every law checked after every step."""
    config = SchedConfig(seqs, budget, 1 << 20, rolling, vocab=VOCAB, coalesce=coalesce, async_scheduling=ahead)
    return Harness(cache or rules(), config, faults, costs, VOCAB)


def submit(harness: Harness, name: str, prompt: Ints, max_tokens: int = 4, **options: object) -> None:
    harness.submit(Request(name, prompt, SamplingParams(max_tokens), **options))  # type: ignore[arg-type]


def ask(harness: Harness, name: str, prompt: Ints, max_tokens: int = 4, **options: object) -> AdmissionOutcome:
    """Serve one request, alone, until nothing is left to do."""
    submit(harness, name, prompt, max_tokens, **options)
    harness.drain()
    return outcome(harness, name)


def outcome(harness: Harness, name: str) -> AdmissionOutcome:
    found = harness.told[name].outcome
    assert found is not None, f"{name} was never admitted"
    return found


def served(harness: Harness, *names: str) -> None:
    """These have ended by themselves; that they said what a cold run says is a law."""
    for name in names:
        told = harness.told[name]
        assert told.finished is not None and told.finished.reason == "length", (name, told.finished)


def history(harness: Harness, name: str) -> Ints:
    """Prompt and answer."""
    told = harness.told[name]
    return np.concatenate([told.request.prompt, np.array(told.tokens, np.int32)])


def example(pages: int = 64, *, whole: bool = False, clean: float = 0.0, seqs: int = 4, budget: int = 64) -> Harness:
    """The device serves 20 tokens of `PROMPT`; host has KV up to 32 and the image there as well."""
    harness = engine(rules(pages, whole=whole, clean=clean), seqs=seqs, budget=budget)
    ask(harness, "first", PROMPT[:21], 1)
    ask(harness, "second", PROMPT[:33], 1)
    copy_down(harness)
    forget(harness.loop.directory, PROMPT, Tier.DEVICE, 20, (32,))
    return harness


def copy_down(harness: Harness) -> None:
    """Have a copy of all that may be in host; nothing leaves the device."""
    harness.flush(Tier.DEVICE, demote_first=True, keep=1 << 30)


class Bare:
    """An engine without the laws, for thousands of requests. Keeps nothing of what it has served; every answer is compared
    with the cold one."""

    def __init__(self, cache: CacheConfig, *, seqs: int = 4, budget: int = 64) -> None:
        self.sizes = cache.geometry
        memory = telltale.Memory(cache.geometry, cache.device_pages, cache.host_slots, seqs)
        runner = telltale.TellTaleRunner(memory, cache.geometry, VOCAB)
        self.clock = VirtualClock()
        self.loop = EngineLoop(
            cache,
            SchedConfig(seqs, budget, 1 << 20, 2 * cache.geometry.block, vocab=VOCAB),
            runner,
            InstantMover(memory.copy),
            self.clock,
        )

    def ask(self, prompt: Ints, max_tokens: int = 2) -> tuple[AdmissionOutcome, Ints]:
        """How it was admitted, and prompt and answer together."""
        self.loop.submit(Request("one", prompt, SamplingParams(max_tokens)))
        said: list[int] = []
        admitted: deque[AdmissionOutcome] = deque(maxlen=1)
        while self.loop.busy:
            self.clock.advance(1.0)
            for event in self.loop.step():
                if isinstance(event, Tokens):
                    said += event.tokens
                elif isinstance(event, Admitted):
                    admitted.append(event.outcome)
                elif isinstance(event, Finished):
                    assert event.reason == "length", event
        assert said == telltale.answer(prompt, max_tokens, VOCAB)
        return admitted[0], np.concatenate([prompt, np.array(said, np.int32)])
