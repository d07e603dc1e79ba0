"""What random weights (`--load-format dummy`) of a model's shape do to answers and experts, at a depth and width that a CPU can hold.

    python bench/dummy.py --model DIR          layers, experts and head of DIR/config.json; widths, heads and vocabulary made small
    python bench/dummy.py                      a mixture of 256 experts, 8 a token

64 sequences of random tokens take one more step, with their states and without. Ends with one line of JSON:

    distinct_8, distinct_64    distinct experts a layer for 8 and 64 rows, mean over layers, over what uniform draws would meet
    changed_without_state      share of answers that change where the recurrent states are zeroed
    kept_when_rounded          in bfloat16, share of answers that stay where every dense product is summed in two halves: how much
                               may be asked of two ways of computing such a model, a cold run and a resumed one among them
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stepwell.engine.compute.batching import Layout, lay_out
from stepwell.engine.compute.wishes import Wishes
from stepwell.model import torch_forward
from stepwell.model.batch import Memory, States
from stepwell.model.decoder import HybridDecoder
from stepwell.model.loading import dummy_decoder
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Carry, Fresh, Sample, Step, Work
from stepwell.store.device import DeviceArena, LiveStates, Precision

ROWS, BLOCK = 64, 16
_SMALL = {
    "hidden_size": 256,
    "vocab_size": 8192,
    "intermediate_size": 512,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "dtype": "float32",
}
_DEFAULT = {
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 40,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}


class Sequences:
    """64 of them in memory, each with its state after `length` random tokens."""

    def __init__(self, decoder: HybridDecoder, length: int, seed: int) -> None:
        shape, precision = decoder.config.shape, Precision(decoder.dtype, decoder.dtype)
        geometry = shape.geometry(BLOCK, widths=precision.widths)
        each = geometry.pages_for(length + 1)
        self.decoder, self.length = decoder, length
        self.arena = DeviceArena(ROWS * each, shape, geometry, precision, decoder.device)
        self.live = LiveStates(ROWS, shape, geometry, precision, decoder.device)
        self.tables = np.arange(ROWS * each, dtype=np.int32).reshape(ROWS, each)
        self.tokens = np.random.default_rng(seed).integers(0, shape.vocab, (ROWS, length + 1)).astype(np.int32)
        for slot in range(ROWS):
            self.live.zero(slot)
        self._compute(0, length)

    def answers(self) -> np.ndarray:
        """The token that each chooses next."""
        self.live.committed.fill_(-1)
        return self._compute(self.length, self.length + 1)

    @torch.inference_mode()
    def _compute(self, start: int, end: int) -> np.ndarray:
        live = self.live
        draws = torch.zeros(ROWS + 1, dtype=torch.int64)
        states = States(live.conv, live.recurrent, live.hidden)
        memory = Memory(
            self.arena.keys,
            self.arena.values,
            states,
            live.committed,
            live.pending,
            live.rings,
            draws,
            draws.new_zeros(ROWS + 1, 0),
        )
        works = [
            Work(
                str(slot),
                slot,
                0,
                start,
                self.tokens[slot, start:end],
                self.tables[slot],
                0,
                Carry() if start else Fresh(),
                (),
                Sample(SamplingParams(), 0),
            )
            for slot in range(ROWS)
        ]
        batch = lay_out(Step(tuple(works)), Layout(BLOCK, self.arena.spare, False), Wishes(ROWS + 1)).batch
        none = live.new_images(0)
        forward = self.decoder.backend.plan(batch, memory, States(none.conv, none.recurrent, none.hidden))
        chosen: np.ndarray = self.decoder.compute(forward).logits.float().argmax(-1).numpy()
        return chosen


def watch_router(chosen: list[Any]) -> None:
    """Have every layer's choice of experts recorded."""
    route = torch_forward.route

    def watched(*arguments: Any) -> Any:
        answer = route(*arguments)
        chosen.append(answer[1])
        return answer

    torch_forward.route = watched


def share_of_uniform(chosen: list[Any], rows: int, experts: int, top: int) -> float:
    """Distinct experts of each layer for parts of so many rows, over the number that uniform draws would meet."""
    counts = [part.unique().numel() for layer in chosen for part in layer.split(rows)]
    return float(np.mean(counts)) / (experts * (1 - (1 - top / experts) ** rows))


@contextmanager
def summed_in_halves() -> Iterator[None]:
    """Dense products are rounded once more, as another kernel or another number of rows might round them."""
    whole = F.linear

    def halves(x: Tensor, weight: Tensor) -> Tensor:
        half = weight.shape[-1] // 2
        return whole(x[..., :half], weight[..., :half]) + whole(x[..., half:], weight[..., half:])

    F.linear = halves
    try:
        yield
    finally:
        F.linear = whole


def kept_when_rounded(folder: Path, length: int, seed: int) -> float:
    decoder = dummy_decoder(folder, torch.bfloat16, seed=seed)
    right = Sequences(decoder, length, seed).answers()
    with summed_in_halves():
        return float(np.mean(Sequences(decoder, length, seed).answers() == right))


def made_small(model: Path | None, target: Path) -> Path:
    """A folder with the config of that shape."""
    config = _DEFAULT if model is None else json.loads((model / "config.json").read_text())
    text = (
        {"model_type": config["model_type"] + "_text", **config["text_config"]} if "text_config" in config else config
    )
    (target / "config.json").write_text(json.dumps({**text, **_SMALL}))
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder with a config.json")
    parser.add_argument("--length", type=int, default=100, help="tokens of each sequence (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and tokens (default 0)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen: list[Any] = []
    watch_router(chosen)
    with tempfile.TemporaryDirectory() as folder:
        small = made_small(options.model, Path(folder))
        kept_rounded = kept_when_rounded(small, options.length, options.seed)
        chosen.clear()
        decoder = dummy_decoder(small, seed=options.seed)
    sequences = Sequences(decoder, options.length, options.seed)
    kept = sequences.live.recurrent.clone(), sequences.live.conv.clone()
    chosen.clear()
    right = sequences.answers()
    shape, found = decoder.config.shape, list(chosen)
    sequences.live.recurrent.zero_()
    sequences.live.conv.copy_(kept[1])
    figures = {
        "changed_without_state": float(np.mean(sequences.answers() != right)),
        "kept_when_rounded": kept_rounded,
    }
    if found:
        for rows in (8, ROWS):
            share = share_of_uniform(found, rows, shape.experts, shape.experts_per_token)
            figures[f"distinct_{rows}"] = round(share, 4)
    table = Table("figure", "value", title=f"{shape.layers} layers, {shape.experts} experts")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}")
    Console().print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
