"""Small real engines with a disk tier, for tests: what they keep where, and how to make them forget it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.build import build_engine
from stepwell.engine.config import EngineConfig, engine_config
from stepwell.engine.llm import Completion, LocalEngine
from stepwell.engine.owned import OwnedLoop
from stepwell.engine.process.serving import build
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import SamplingParams
from stepwell.testing.checkpoint import write_checkpoint

VOCAB = 320
PROMPT = [5 + 7 * i % 300 for i in range(150)]
"""Its rung is at 128: the last multiple of 64 below its end."""
EIGHT = SamplingParams(max_tokens=8, ignore_eos=True)
SMALL = {
    "device": "cpu",
    "device_memory": "16MiB",
    "host_memory": "16MiB",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "max_model_len": 1024,
    "min_load_tokens": 16,
}


def small_model(path: Path, seed: int = 0) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(path, hidden=64, layers=4, vocab=VOCAB, max_positions=4096, seed=seed)


def small_config(model: Path, disk: Path | None, **flags: Any) -> EngineConfig:
    place = {} if disk is None else {"disk_cache": f"{disk}:64MiB"}
    return engine_config({"model": str(model), **SMALL, **place, **flags})


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine in this process, and its loop."""

    llm: LocalEngine
    loop: OwnedLoop

    @classmethod
    def of(cls, model: Path, disk: Path | None, **flags: Any) -> Engine:
        config = small_config(model, disk, **flags)
        loop, facts = build(build_engine, config)
        assert isinstance(loop, OwnedLoop)
        return cls(LocalEngine(loop, Tokenizer.load(str(model)), facts), loop)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()

    def ask(self, prompt: list[int] | None = None, **options: Any) -> Completion:
        return self.llm.generate([PROMPT if prompt is None else prompt], EIGHT, **options)[0]

    def settle(self) -> None:
        """Until everything that is worth it has been written."""
        while self.loop.busy:
            self.loop.step()

    def forget(self, *tiers: Tier) -> None:
        """Drop what these tiers hold, once it is on disk."""
        self.settle()
        forget(self.loop, *tiers)


def forget(loop: OwnedLoop, *tiers: Tier) -> None:
    """Drop what these tiers hold. The loop must be at rest."""
    directory = loop.directory
    for tier in tiers:
        items = [item for node in directory.tree.nodes() for item in node.items()]
        for item in sorted(items, key=lambda i: (-i.node.end, i.what == "kv")):
            if item.at[tier] is not None:
                directory.drop(item, tier)


def sources(outcome: AdmissionOutcome) -> tuple[int, int, int, int]:
    """Prompt tokens from device, host and disk, and recomputed ones."""
    return outcome.device, outcome.host, outcome.disk, outcome.recomputed
