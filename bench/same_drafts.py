"""Whether answers are the same with drafts and without: greedy, in float32, on a CPU, through every tier and preempted.

    python bench/same_drafts.py                    200 prompts at both depths: some minutes of one core
    python bench/same_drafts.py --prompts 20

A small hybrid whose draft layer is right about half of the time. Prompts come in fours: one that is new, and three that go on from it and
its answers. Twelve talks at once share a device and a host that are too small for them, above a disk: answers are preempted, and prompts
resume from wherever they can. Answers without drafts come from an engine that has room for all. Drafts are always on: nothing measured
decides. Prints a line for each depth, then one line of JSON; device, host and disk are tokens that prompts found there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from stepwell.engine import build
from stepwell.engine.llm import LLM
from stepwell.sched.drafts import Always
from stepwell.sched.request import SamplingParams
from stepwell.testing.checkpoint import write_checkpoint

VOCAB, LONGEST, ANSWER, BEFORE = 512, 150, 24, 12
ROOMY: dict[str, Any] = {"max_model_len": 512, "host_memory": "64MiB", "device_memory": "64MiB", "dtype": "float32"}
TIGHT: dict[str, Any] = {"device_memory": "1200KiB", "host_memory": "4MiB", "min_load_tokens": 0}
GREEDY = SamplingParams(max_tokens=ANSWER, ignore_eos=True)


def checkpoint(folder: Path) -> Path:
    """A model whose next token depends on the last one most of all, and a draft layer that knows."""
    write_checkpoint(folder, hidden=64, layers=4, vocab=VOCAB, mtp=True)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    norm, straight = tensors["model.norm.weight"], torch.eye(64)
    tensors["model.embed_tokens.weight"] *= 8
    tensors["mtp.pre_fc_norm_embedding.weight"] = torch.zeros_like(norm)
    tensors["mtp.fc.weight"] = torch.cat((4 * straight, 0.3 * straight), 1)
    tensors["mtp.norm.weight"] = norm.clone()
    save_file(tensors, file)
    return folder


def rounds(count: int) -> list[list[list[int]]]:
    """Beginnings, a few at a time."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(3, VOCAB, int(rng.integers(20, LONGEST))).tolist() for _ in range(-(-count // 4))]
    return [drawn[at : at + BEFORE] for at in range(0, len(drawn), BEFORE)]


def talked(llm: LLM, count: int) -> tuple[list[tuple[int, ...]], Counter[str]]:
    """The answers to `count` prompts, and their tokens by where they came from."""
    answers: list[tuple[int, ...]] = []
    sources: Counter[str] = Counter()
    for beginnings in rounds(count):
        talks = beginnings
        for turn in range(4):
            told = llm.generate(talks, GREEDY)
            for answer in told:
                answers.append(answer.token_ids)
                how = answer.outcome
                sources.update(device=how.device, host=how.host, disk=how.disk)
            talks = [talk + list(one.token_ids) + [3 + turn] for talk, one in zip(talks, told, strict=True)]
    return answers[:count], sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    build.Measured = Always  # type: ignore[misc,assignment]
    out: dict[str, Any] = {"prompts": options.prompts}
    with tempfile.TemporaryDirectory() as place:
        model = str(checkpoint(Path(place) / "model"))
        with LLM(model, **ROOMY) as llm:
            plain, _ = talked(llm, options.prompts)
        for depth in ("off", "on"):
            flags = {**ROOMY, **TIGHT, "disk_cache": f"{place}/{depth}:64MiB", "async_scheduling": depth}
            with LLM(model, **flags, num_speculative_tokens=3) as llm:
                drafted, sources = talked(llm, options.prompts)
                stats = llm.stats()
            same = sum(one == other for one, other in zip(drafted, plain, strict=True))
            first, accepted = stats.drafts[1]
            told = {
                "same": same,
                "drafts_accepted": round(accepted / max(1, first), 3),
                "preemptions": stats.preemptions,
                **sources,
            }
            out[f"ahead_{depth}"] = told
            print(f"steps ahead {depth}: {same} of {options.prompts} answers the same; {told}", flush=True)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
