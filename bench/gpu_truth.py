"""Is a resumed answer as right as a cold one? Both against the same weights computed in float32 by plain torch, on a GPU.

    python bench/gpu_truth.py                            D whole and eight layers of M: about a minute
    python bench/gpu_truth.py --shapes D --layers 8

Random weights in bfloat16 turn a third of the answers by rounding alone, so that equal tokens can prove nothing. Distances can: each
prompt is computed whole, and again up to a boundary whose state and KV go into the cache, from where another slot resumes; then both
decode the same tokens. Told is the distance of the logits from the truth, |x − truth| / |truth|, as medians:

    cold, resumed        how far each is from the truth: the same, if nothing is lost on the way
    apart                how far the two are from each other
    cold_again           the same cold run twice
    *_top                share of answers whose likeliest token is the truth's
    zeroed, foreign      as resumed, with the state zeroed, and with another prompt's: what a wrong state looks like

Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gpu_backend import SHAPES, VOCAB, Rig
from rich.console import Console
from rich.table import Table

from stepwell.base.geometry import Ints
from stepwell.model.backends import backend_for
from stepwell.model.torch_backend import TorchBackend
from stepwell.sched.step import Carry, Cut, Fresh, FromImage, StateStart, Step
from stepwell.store.device import Precision

GRID, DECODES, ROOM = 64, 8, 4096
Rows = list[np.ndarray]


def distance(found: Rows, right: Rows) -> float:
    """Median over positions of the relative distance of logits."""
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, right, strict=True)]
    return float(np.median([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]))


class Prompts:
    """Prompts, the tokens that are decoded behind them, and where each is resumed."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lengths = [int(n) for n in rng.integers(300, ROOM - DECODES - 1, count)]
        self.tokens = [rng.integers(0, VOCAB, n + DECODES).astype(np.int32) for n in self.lengths]
        # some a few tokens before the end, as an agent's next step does, some far before it
        backs = [int(rng.integers(1, 200)) if i % 2 else int(rng.integers(200, n)) for i, n in enumerate(self.lengths)]
        self.boundaries = [max(n - back, GRID) // GRID * GRID for n, back in zip(self.lengths, backs, strict=True)]


class Machine:
    """A rig with five rows of pages: a cold prompt, a resumed one, two images, and one that stays zero."""

    def __init__(self, shape: dict[str, Any], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.rig = Rig(shape, 5, ROOM, TorchBackend if dtype is torch.float32 else backend_for, (4,), dtype)
        config = self.rig.decoder.config.shape
        self._image = config.geometry(16, widths=Precision(dtype, dtype).widths).image_pages

    def image(self, which: int) -> Ints:
        return np.ascontiguousarray(self.rig.pages[2 + which % 2, : self._image])

    def nothing(self) -> Ints:
        return np.ascontiguousarray(self.rig.pages[4, : self._image])

    def run(self, row: int, start: int, tokens: Ints, state: StateStart, cuts: tuple[Cut, ...] = ()) -> np.ndarray:
        """The logits behind `tokens`, computed in one pass."""
        work = self.rig.work(row, start, tokens, keep=True)
        work = replace(work, pages=self.rig.pages[row, : -(-work.end // 16)], state=state, cuts=cuts)
        return self.rig.runner.launch(Step((work,))).result().logits[0][1]

    def answer(self, row: int, start: int, tokens: Ints, length: int, state: StateStart) -> Rows:
        """Logits behind the prompt, which ends at `length`, and behind each token decoded after it."""
        found = [self.run(row, start, tokens[start:length], state)]
        return found + [self.run(row, at, tokens[at : at + 1], Carry()) for at in range(length, len(tokens))]


def measure(name: str, shape: dict[str, Any], prompts: Prompts) -> dict[str, float]:
    every = list(zip(prompts.tokens, prompts.lengths, prompts.boundaries, strict=True))
    truth = Machine(shape, torch.float32)
    right = [truth.answer(0, 0, tokens, length, Fresh()) for tokens, length, _ in every]
    del truth
    torch.cuda.empty_cache()
    machine, found = Machine(shape, torch.bfloat16), []
    for which, (tokens, length, boundary) in enumerate(every):
        cold = machine.answer(0, 0, tokens, length, Fresh())
        machine.run(1, 0, tokens[:boundary], Fresh(), (Cut(boundary, machine.image(which)),))
        starts = (FromImage(pages) for pages in (machine.image(which), machine.nothing(), machine.image(which + 1)))
        resumed, zeroed, foreign = (machine.answer(1, boundary, tokens, length, state) for state in starts)
        told = {"cold": distance(cold, right[which]), "resumed": distance(resumed, right[which])}
        told |= {
            "apart": distance(resumed, cold),
            "cold_again": distance(machine.answer(0, 0, tokens, length, Fresh()), cold),
        }
        told |= {"zeroed": distance(zeroed, right[which]), "foreign": distance(foreign, right[which])}
        told["cold_top"] = float(np.mean([a.argmax() == b.argmax() for a, b in zip(cold, right[which], strict=True)]))
        told["resumed_top"] = float(
            np.mean([a.argmax() == b.argmax() for a, b in zip(resumed, right[which], strict=True)])
        )
        found.append(told)
    return {f"{name} {key}": round(float(np.mean([told[key] for told in found[1:]])), 5) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["D", "M"], choices=list(SHAPES))
    parser.add_argument(
        "--layers", type=int, help="of every shape (default: all of D, 8 of M, whose float32 is too large)"
    )
    parser.add_argument(
        "--prompts", type=int, default=13, help="the first lends its state as foreign and is not counted"
    )
    options = parser.parse_args()
    table, figures = Table("figure", "value"), {}
    for name in options.shapes:
        layers = options.layers or {"D": SHAPES["D"]["num_hidden_layers"], "M": 8}[name]
        figures |= measure(name, {**SHAPES[name], "num_hidden_layers": layers}, Prompts(options.prompts, seed=0))
        torch.cuda.empty_cache()
    for key, value in figures.items():
        table.add_row(key, f"{value:.5f}")
    Console(width=100).print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
