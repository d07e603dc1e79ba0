"""A server on a real, very small model: what is sampled there is sampled for real."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.engine.build import build_engine
from stepwell.engine.config import EngineConfig
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.testing.checkpoint import write_checkpoint
from tests.engine.scripted import CONTEXT
from tests.server.harness import Running, running
from tests.server.templates import talking_tokenizer

VOCAB = 320  # what the harness reports, with four marks behind the tokens of the checkpoint's own tokenizer


@dataclass(frozen=True, slots=True)
class Real:
    """A server, its tokenizer, and what Transformers thinks of the same weights."""

    server: Running
    tokenizer: Tokenizer
    reference: Any

    def chances(self, tokens: list[int]) -> np.ndarray:
        """Log-probabilities after each of `tokens`, float32 [n, vocab], by Transformers."""
        with torch.inference_mode():
            logits = self.reference(torch.tensor([tokens])).logits[0]
        return logits.log_softmax(-1).numpy()


@contextlib.contextmanager
def real_server(path: Path) -> Iterator[Real]:
    """A server on a model of four layers, with a template that knows tools and thoughts."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    write_checkpoint(path, hidden=64, layers=4, vocab=VOCAB, max_positions=CONTEXT)
    tokenizer = talking_tokenizer(path, VOCAB - 4)
    config = EngineConfig(
        str(path), device="cpu", device_memory=64 * 2**20, host_memory=0, max_num_batched_tokens=70, max_num_seqs=4
    )
    loop = build_engine(config, lambda facts: None)
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with running(tokenizer, loop=loop) as server:
        yield Real(server, tokenizer, reference)
