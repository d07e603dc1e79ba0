"""What FP8 keys and values cost in truth: with scale 1, and with a scale for each head, calibrated as `--calculate-kv-scales` does.

    python bench/kv_scales.py                 tiny/model, a minute of one core

The model computes in float32, so that nothing but keys and values is rounded. Prompts are problems of GSM8K's test set behind those
that the calibration reads. Told for each type of KV, and in one line of JSON: the loss (nats a token), how far a token's log-probability
lies from that with KV in float32 on average, and how far the stored keys and values lie from those, |x − truth| / |truth|.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.engine.compute.sampler import Sampler
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.engine.config import EngineConfig
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.engine.worker.kv_scales import calibrated, calibration_tokens
from stepwell.eval.task import TEST, read_problems
from stepwell.model.decoder import HybridDecoder
from stepwell.model.kv_scales import KvScales
from stepwell.model.loading import load_decoder
from stepwell.sched.step import Fresh, Score, Step, Work
from stepwell.store.device import DeviceArena, LiveStates, Precision

HERE = Path(__file__).parent.parent
FIRST, EACH = 200, 2
"""The first problem that is asked, and how many make one prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Log-probabilities of all tokens of all prompts, and keys and values of the last prompt as they are read, [layers, tokens, …]."""

    scores: np.ndarray
    keys: Tensor
    values: Tensor


def measured(decoder: HybridDecoder, prompts: list[Ints], kv: torch.dtype, scales: KvScales | None) -> Found:
    """Every prompt computed from nothing, with KV in this type."""
    shape, precision = decoder.config.shape, Precision(kv, torch.float32)
    geometry = shape.geometry(widths=precision.widths)
    pages = max(geometry.pages_for(len(tokens)) for tokens in prompts)
    arena = DeviceArena(pages, shape, geometry, precision, decoder.device)
    live = LiveStates(1, shape, geometry, precision, decoder.device)
    runner, table, scores = (
        TorchRunner(decoder, arena, live, Sampler(()), scales=scales),
        np.arange(pages, dtype=np.int32),
        [],
    )
    for tokens in prompts:
        score = Score(tokens[1:], 0)
        work = Work("prompt", 0, 0, 0, tokens[:-1], table, 0, Fresh(), (), None, score)
        ((_, told),) = runner.launch(Step((work,))).result().target_scores
        scores += [one.logprob for one in told]
    count = len(prompts[-1]) - 1
    read = [
        torch.stack([layer.flatten(0, 1)[:count].float() for layer in layers]) for layers in (arena.keys, arena.values)
    ]
    if scales is not None:
        read = [x * y[:, None, :, None] for x, y in zip(read, (scales.keys, scales.values), strict=True)]
    return Found(np.array(scores), *read)


def off(x: Tensor, truth: Tensor) -> float:
    return float((x - truth).norm() / truth.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default=str(HERE / "tiny" / "model"))
    parser.add_argument("--prompts", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    directory = Path(options.model)
    decoder, tokenizer = load_decoder(directory, torch.float32), Tokenizer.load(options.model)
    texts = [
        f"{problem.question}\n{problem.answer}\n\n"
        for problem in read_problems(TEST)[FIRST : FIRST + EACH * options.prompts]
    ]
    prompts = [tokenizer.encode("".join(texts[at : at + EACH])) for at in range(0, len(texts), EACH)]
    scales = _scales(decoder, options.model)
    kinds = {
        "float32": (torch.float32, None), "bfloat16": (torch.bfloat16, None),
        "fp8, scale 1": (torch.float8_e4m3fn, None), "fp8, scale of each head": (torch.float8_e4m3fn, scales),
    }  # fmt: skip
    found = {name: measured(decoder, prompts, *kind) for name, kind in kinds.items()}
    truth = found["float32"]
    rows = {
        name: {
            "loss": round(float(-one.scores.mean()), 5),
            "logprob_off": round(float(np.abs(one.scores - truth.scores).mean()), 5),
            "keys_off": round(off(one.keys, truth.keys), 5),
            "values_off": round(off(one.values, truth.values), 5),
        }
        for name, one in found.items()
    }
    table = Table("KV", "loss", "log-probability off by", "keys off by", "values off by")
    for name, row in rows.items():
        table.add_row(name, *map(str, row.values()))
    Console(stderr=True).print(table)
    tokens = sum(map(len, prompts))
    print(json.dumps({"model": directory.name, "tokens": tokens, "exponents": scales.exponents, "kv": rows}))


def _scales(decoder: HybridDecoder, model: str) -> KvScales:
    shape, precision = decoder.config.shape, Precision(torch.float8_e4m3fn, torch.float32)
    geometry = shape.geometry(widths=precision.widths)
    live = LiveStates(1, shape, geometry, precision, decoder.device)
    tokens = calibration_tokens(EngineConfig(model), shape.vocab)
    return calibrated(decoder, tokens, live, geometry, precision, 2048)


if __name__ == "__main__":
    main()
