"""Small checkpoints of every architecture, each loaded here and in Transformers, once a session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from stepwell.base.geometry import Ints

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTH = 130
HYBRIDS = ("qwen3_5", "qwen3_next", "qwen3_next moe", "qwen3_5_moe moe", "olmo_hybrid", "kimi_linear moe")
PLAIN = ("qwen3", "qwen3_moe moe", "llama")
ARCHS = HYBRIDS + PLAIN


@dataclass(frozen=True, slots=True)
class Pair:
    """One checkpoint: our decoder, a prompt of 130 tokens, and Transformers' logits [130, vocab] for it."""

    directory: Path
    decoder: object
    tokens: Ints
    reference: object


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Every architecture, made when first asked for."""

    class Made(dict):  # type: ignore[type-arg]
        def __missing__(self, name: str) -> Pair:
            self[name] = made = _make(name, tmp_path_factory.mktemp(name.replace(" ", "_")))
            return made

    return Made()


def _make(name: str, directory: Path) -> Pair:
    from stepwell.model.loading import load_decoder
    from stepwell.testing.checkpoint import write_checkpoint

    torch.set_num_threads(1)
    arch, _, experts = name.partition(" ")
    write_checkpoint(directory, arch=arch, hidden=64, layers=4, vocab=512, experts=8 if experts else 0)
    tokens = np.random.default_rng(1).integers(3, 512, LENGTH).astype(np.int32)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        reference = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].clone()
    return Pair(directory, load_decoder(directory), tokens, reference)
