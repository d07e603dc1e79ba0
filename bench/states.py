"""What a conversation loses by resuming: error after up to 100 cycles, with states kept in float32 and in bfloat16, on a CPU.

    python bench/states.py                    some two minutes of one core

A cycle resumes at an image in another live slot, computes 40 tokens as a prompt and 24 one by one, and leaves an image behind the last:
so a state in bfloat16 is rounded at every decode and every image. The truth are the same tokens computed in one go with states in
float32. Random weights of a small hybrid in float32, so that nothing but states is rounded; its heads remember 1 to 100 tokens. Told for
some cycles, and in one line of JSON: distance of the last token's logits, |x − truth| / |truth|, and of its state.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.engine.compute.sampler import Sampler
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.model.loading import dummy_decoder
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Carry, Cut, Fresh, FromImage, Sample, StateStart, Step, Work
from stepwell.store.device import DeviceArena, LiveStates, Precision

GRID, PROMPT, BLOCK, VOCAB = 64, 40, 16, 2048
TOLD = (1, 10, 30, 100)
SHAPE = {
    "model_type": "qwen3_5_text", "vocab_size": VOCAB, "hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "dtype": "float32", "max_position_embeddings": 65536,
}  # fmt: skip


class Conversation:
    """One conversation over two live slots and two images, with states kept as `state` says."""

    def __init__(self, folder: Path, tokens: Ints, state: str) -> None:
        decoder = dummy_decoder(folder, torch.float32)
        precision = Precision.of(torch.float32, state=state)
        geometry = decoder.config.shape.geometry(BLOCK, widths=precision.widths)
        own, image = geometry.pages_for(len(tokens)), geometry.image_pages
        arena = DeviceArena(own + 2 * image, decoder.config.shape, geometry, precision, decoder.device)
        self.live = LiveStates(2, decoder.config.shape, geometry, precision, decoder.device)
        self.runner = TorchRunner(decoder, arena, self.live, Sampler(()))
        pages = np.arange(own + 2 * image, dtype=np.int32)
        self.tokens, self.pages = tokens, pages[:own]
        self.images = np.split(pages[own:], 2)

    def run(self, start: int, end: int, slot: int, state: StateStart, cuts: tuple[Cut, ...] = ()) -> np.ndarray:
        """Compute these tokens in one pass; the logits behind the last."""
        sample = Sample(SamplingParams(), 0, keep_logits=True)
        pages = self.pages[: -(-end // BLOCK)]
        work = Work(f"{slot}", slot, 0, start, self.tokens[start:end], pages, start, state, cuts, sample)
        return np.asarray(self.runner.launch(Step((work,))).result().logits[0][1], np.float64)

    def cycle(self, number: int) -> np.ndarray:
        """Resume at the image of the cycle before, and leave one."""
        start, end, slot = (number - 1) * GRID, number * GRID, number % 2
        state = FromImage(self.images[(number - 1) % 2]) if start else Fresh()
        self.run(start, start + PROMPT, slot, state)
        for at in range(start + PROMPT, end - 1):
            self.run(at, at + 1, slot, Carry())
        return self.run(end - 1, end, slot, Carry(), (Cut(end, self.images[number % 2]),))

    def state(self, slot: int) -> Tensor:
        return self.live.recurrent[:, slot].double()


def distance(found: Any, right: Any) -> float:
    return float(np.linalg.norm(np.asarray(found - right).ravel()) / np.linalg.norm(np.asarray(right).ravel()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    told = [n for n in TOLD if n < options.cycles] + [options.cycles]
    tokens = np.random.default_rng(options.seed).integers(0, VOCAB, options.cycles * GRID).astype(np.int32)
    figures: dict[str, dict[str, float]] = {"float32": {}, "bfloat16": {}}
    table = Table("states", "cycles", "logits off by", "state off by", "same token")
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(SHAPE))
        whole, right = Conversation(Path(name), tokens, "float32"), {}
        for before, after in zip([0, *told], told, strict=False):
            found = whole.run(before * GRID, after * GRID, 0, Carry() if before else Fresh())
            right[after] = found, whole.state(0)
        for kind, row in figures.items():
            again = Conversation(Path(name), tokens, kind)
            for number in range(1, options.cycles + 1):
                logits = again.cycle(number)
                if number in right:
                    off = distance(logits, right[number][0]), distance(again.state(number % 2), right[number][1])
                    same = logits.argmax() == right[number][0].argmax()
                    row |= {f"logits_{number}": off[0], f"state_{number}": off[1]}
                    table.add_row(kind, str(number), f"{off[0]:.1e}", f"{off[1]:.1e}", "yes" if same else "no")
    Console().print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
