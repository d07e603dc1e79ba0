"""What drafts gain on a GPU: tokens a second with three of them over none, at acceptance that is forced.

    python bench/mtp.py                                  M and D, 1 and 64 answers at once: some three minutes, 110 GB of device memory
    python bench/mtp.py --shapes D M-FP8                 M with the weights of official FP8 packs
    python bench/mtp.py --shapes D --out docs/numbers/models.json

M is the shape of Qwen3.5-35B-A3B, D that of Qwen3.5-4B, each with its draft layer: random weights, bfloat16 unless the name says FP8,
states in float32. Random weights guess nothing, so a test sampler accepts a share of the drafts, by a coin for each position. The engine
loop is the one that serves, with asynchronous steps, rolling rungs, and drafts that turn themselves off where they do not gain; server and
client are left out. Tokens count from 64 tokens of each answer on, to 256. Ends with one line of JSON; with `--out` it becomes
`mtp_over_none` of that file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_backend import COMMON, SHAPES, VOCAB
from rich.console import Console
from rich.table import Table

from stepwell.base.clock import WallClock
from stepwell.cache.config import CacheConfig
from stepwell.engine.compute.sampler import Sampler
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.model.backend import Prepared
from stepwell.model.backends import backend_for
from stepwell.model.decoder import HybridDecoder
from stepwell.model.loading import dummy_decoder
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import Measured
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Request, SamplingParams, Tokens
from stepwell.store.device import DeviceArena, LiveStates, Precision
from stepwell.testing.faults import InstantMover

DEVICE, BLOCK, PROMPT = torch.device("cuda"), 16, 256
ROWS, DRAFTS, SHARES = (1, 64), 3, (0.7, 0.0, 1.0)
FIRST, LAST = 64, 256
"""Tokens of an answer between which its time counts: before, drafts that gain nothing have turned themselves off."""
FP8 = "-FP8"
MUST = {"M_1": 1.15, "M_64": 1.6, "D_1": 1.5, "at_zero": 0.9}


@dataclass(frozen=True, slots=True)
class Served:
    """Tokens a second of all answers, tokens a step of one answer, and milliseconds a step."""

    rate: float
    each: float
    step_ms: float


class Bench:
    """A shape, with a runner that drafts and one that does not, over the same weights."""

    def __init__(self, name: str, rows: tuple[int, ...], layers: int | None) -> None:
        shape = {**COMMON, **SHAPES[name], **({"num_hidden_layers": layers} if layers else {})}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(shape))
            self._decoder = dummy_decoder(Path(folder), torch.bfloat16, DEVICE, make=backend_for, drafts=True)
        self._rows = rows
        precision, of = Precision(torch.bfloat16, torch.bfloat16), self._decoder.config.shape
        self._geometry = of.geometry(BLOCK, widths=precision.widths)
        each = self._geometry.pages_for(PROMPT + LAST + 2 * (1 + DRAFTS)) + 2 * self._geometry.image_pages
        self._pages = max(rows) * each
        self._arena = DeviceArena(self._pages, of, self._geometry, precision, DEVICE)
        self._live = LiveStates(max(rows), of, self._geometry, precision, DEVICE, 2 * (1 + DRAFTS))

    def runner(self, share: float | None) -> TorchRunner:
        """One that accepts so many of its drafts; None: it does not draft, and folds tokens at once."""
        if share is not None:
            made = TorchRunner(self._decoder, self._arena, self._live, Sampler(), DRAFTS, share)
        else:
            d, live = self._decoder, self._live
            plain = HybridDecoder(d.config, d._embedding, d._layers, d._norm, d._head, d.backend)
            at_once = LiveStates(live.slots, d.config.shape, self._geometry, Precision(d.dtype, d.dtype), DEVICE)
            made = TorchRunner(plain, self._arena, at_once, Sampler())
        width = self._geometry.pages_for(PROMPT + LAST) + 2
        made.prepare(Prepared(self._rows, (PROMPT,), width))
        return made

    def serve(self, runner: TorchRunner, count: int, drafts: int) -> Served:
        """`count` answers at once."""
        rules = SchedConfig(
            count, max(4096, PROMPT * count), PROMPT + LAST + 1, vocab=VOCAB, async_scheduling=True, drafts=drafts
        )
        cache = CacheConfig(self._geometry, self._pages)
        loop = EngineLoop(cache, rules, runner, InstantMover(lambda move: None), WallClock(), gain=Measured())
        rng = np.random.default_rng(count)
        for number in range(count):
            prompt = rng.integers(0, VOCAB, PROMPT).astype(np.int32)
            loop.submit(Request(f"{number}", prompt, SamplingParams(max_tokens=LAST, ignore_eos=True)))
        told: Counter[str] = Counter()
        begun = steps = before = 0
        began = 0.0
        while True:
            for event in loop.step():
                if isinstance(event, Tokens):
                    told[event.request_id] += len(event.tokens)
            if not begun and len(told) == count and min(told.values()) >= FIRST:
                begun, steps, began = sum(told.values()), loop.stats().steps, time.perf_counter()
            if begun and max(told.values()) >= LAST - 4:
                break
            assert loop.busy, f"answers ended before {LAST} tokens"
        seconds, drawn, before = time.perf_counter() - began, sum(told.values()) - begun, loop.stats().steps - steps
        while loop.serving:
            loop.step()
        return Served(drawn / seconds, drawn / before / count, 1e3 * seconds / before)


def measure(name: str, layers: int | None, console: Console) -> dict[str, dict[str, float]]:
    """Of each number of answers: tokens a second with none, and over that at each acceptance."""
    bench, out = Bench(name, ROWS, layers), dict[str, dict[str, float]]()
    table = Table("answers", "accepted", "tokens/s", "over none", "tokens a step", "ms a step", title=name)
    plain = bench.runner(None)
    none = {count: bench.serve(plain, count, 0) for count in ROWS}
    del plain
    torch.cuda.empty_cache()
    for count, served in none.items():
        out[f"{count}"] = {"none": round(served.rate, 1)}
        console.print(f"{name} {count}: {served}")
        table.add_row(f"{count}", "none", f"{served.rate:,.0f}", "", f"{served.each:.2f}", f"{served.step_ms:.2f}")
    for share in SHARES:
        runner = bench.runner(share)
        for count in ROWS:
            served = bench.serve(runner, count, DRAFTS)
            over = served.rate / none[count].rate
            out[f"{count}"][f"{share}"] = round(over, 3)
            console.print(f"{name} {count} at {share}: {served.rate:,.0f} tokens/s, {over:.3f} of none, {served}")
            row = f"{served.rate:,.0f}", f"{over:.2f}", f"{served.each:.2f}", f"{served.step_ms:.2f}"
            table.add_row(f"{count}", f"{share}", *row)
        del runner
        torch.cuda.empty_cache()
    console.print(table)
    return out


def summary(found: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """What is to hold of them, of what was measured."""
    told = {f"{name.removesuffix(FP8)}_{count}": found[name][count]["0.7"] for name in found for count in found[name]}
    zero = [own["0.0"] for counts in found.values() for own in counts.values()]
    return {key: value for key, value in (*told.items(), ("at_zero", min(zero))) if key in MUST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["D", "M"], choices=list(SHAPES))
    parser.add_argument("--layers", type=int, help="of each shape, instead of all (a multiple of four)")
    parser.add_argument("--out", type=Path, help="JSON file that receives the figures; what else it holds stays")
    options = parser.parse_args()
    console, found = Console(width=110), dict[str, Any]()
    for name in options.shapes:
        found[name] = measure(name, options.layers, console)
        torch.cuda.empty_cache()
        print(json.dumps({"mtp": found}), flush=True)
    types = {name.removesuffix(FP8): "fp8" if name.endswith(FP8) else "bfloat16" for name in found}
    told = {"mtp_over_none": summary(found), "date": datetime.date.today().isoformat(), "mtp_weights": types}
    if options.out is not None:
        before = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps({**before, **told}, indent=1) + "\n")
    print(json.dumps({**told, "mtp": found, "must": MUST}))


if __name__ == "__main__":
    main()
