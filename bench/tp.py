"""An engine of several ranks against one GPU: the same answers, how fast it decodes, computes prompts and loads, how soon it ends.

    python bench/tp.py --ranks 1 --out one.json                    one GPU in process, the reference
    python bench/tp.py --ranks 2 --out two.json                    two ranks
    python bench/tp.py --ranks 1 --apart --out apart.json          one rank in a process of its own: what that costs
    python bench/tp.py --ranks 1 --brief --out one.json            answers, decodes of 1 and of most sequences, a killed rank, no more
    python bench/tp.py --ranks 2 --faults --out faults.json        10,000 steps under eviction, copies failing on the last rank
    python bench/tp.py --compare one.json two.json                 ratios, as docs/numbers/tp.json has them

`--shape` as `bench/load/models.py` names it, `--layers` for a reduced depth. With random weights the likeliest tokens lie close together:
rounding in another order flips them, so `flips` says little and `logprobs_apart` says more (the largest difference of log-probabilities
behind each prompt). `--model` takes a checkpoint instead; its prompts are random words, too, so that bfloat16 flips some all the same:
flips count with `--dtype float32`. `--deterministic` makes resumed answers the cold ones.
With `--device cpu` everything runs small, without a GPU. Each run prints what it finds as it finds it, and ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from load.models import CONFIGS, write_model

from stepwell.base.errors import RankError
from stepwell.cache.moves import Extent, Move, Tier
from stepwell.engine.build import build_engine
from stepwell.engine.config import EngineFacts, engine_config
from stepwell.engine.owned import OwnedLoop
from stepwell.sched.request import Admitted, Request, SamplingParams, Tokens

_EARLY, _STEPS, _RUNS = 16, 64, 4
_CHUNK = 16  # pages of a move

Found = dict[str, Any]


class Bench:
    """An engine, and requests of its own making."""

    def __init__(self, loop: OwnedLoop, vocab: int) -> None:
        self.loop = loop
        self._vocab = vocab
        self._number = 0

    def prompt(self, count: int, seed: int) -> Any:
        return np.random.default_rng(seed).integers(0, self._vocab, count).astype(np.int32)

    def begin(self, prompts: Sequence[Any], tokens: int) -> list[str]:
        names = []
        for prompt in prompts:
            self._number += 1
            names.append(f"r{self._number}")
            self.loop.submit(Request(names[-1], prompt, SamplingParams(max_tokens=tokens, ignore_eos=True)))
        return names

    def answers(self, prompts: Sequence[Any], tokens: int) -> tuple[list[list[int]], list[int]]:
        """Greedy answers of prompts that are computed together, and how many tokens of each were in host."""
        names = self.begin(prompts, tokens)
        found: dict[str, list[int]] = {name: [] for name in names}
        host = dict.fromkeys(names, 0)
        while self.loop.serving:
            for event in self.loop.step():
                if isinstance(event, Tokens):
                    found[event.request_id] += event.tokens
                elif isinstance(event, Admitted):
                    host[event.request_id] = event.outcome.host
        return list(found.values()), list(host.values())

    def likely(self, prompt: Any) -> dict[int, float]:
        """The likeliest tokens behind a prompt, and their log-probabilities."""
        params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=20)
        self._number += 1
        self.loop.submit(Request(f"r{self._number}", prompt, params, read_cache=False))
        found: dict[int, float] = {}
        while self.loop.serving:
            for event in self.loop.step():
                if isinstance(event, Tokens) and event.scores:
                    found = dict(event.scores[0].top)
        return found

    def rest(self) -> None:
        """Until all copies have landed."""
        while self.loop.busy:
            self.loop.step()

    def decode_ms(self, rows: int, context: int) -> float:
        """Of one step, every sequence at `context` tokens or a little more; the mean of the best of a few runs."""
        names = self.begin(
            [self.prompt(context, 1000 * rows + row) for row in range(rows)], 100 + 8 * rows + _RUNS * _STEPS
        )
        speaking: set[str] = set()
        while len(speaking) < rows:
            speaking |= {event.request_id for event in self.loop.step() if isinstance(event, Tokens)}
        for _ in range(_EARLY):
            self.loop.step()
        seconds = []
        for _ in range(_RUNS):
            began = time.perf_counter()
            for _ in range(_STEPS):
                self.loop.step()
            seconds.append(time.perf_counter() - began)
        self.drop(names)
        return 1e3 * min(seconds) / _STEPS

    def prefill(self, count: int, seed: int) -> float:
        """Tokens a second of one prompt."""
        prompt = self.prompt(count, seed)
        began = time.perf_counter()
        self.answers([prompt], 1)
        return count / (time.perf_counter() - began)

    def drop(self, names: Sequence[str]) -> None:
        for name in names:
            self.loop.abort(name)
        while self.loop.serving:
            self.loop.step()

    def link(self, source: Tier, target: Tier, pages: int) -> float:
        """Bytes a second of one rank, over so many pages. The engine must be empty."""
        every = np.arange(pages, dtype=np.int32)
        moves = [
            Move(-1 - at, "kv", Extent(source, part), Extent(target, part), 0)
            for at in range(0, pages, _CHUNK)
            for part in (every[at : at + _CHUNK],)
        ]
        mover, ended = self.loop._mover, 0
        began = time.perf_counter()
        mover.start(moves)
        while ended < len(moves):
            reports = mover.poll()
            assert all(report.ok for report in reports), reports
            ended += len(reports)
            if not reports:
                mover.wait(0.01)
        return pages * self.loop.directory.config.geometry.page_bytes / (time.perf_counter() - began)


def built(options: argparse.Namespace, folder: Path, **more: Any) -> tuple[Bench, EngineFacts]:
    model = options.model or folder / "model"
    if not model.exists():
        write_model(options.shape, model)
        config = json.loads((model / "config.json").read_text())
        if options.layers:
            config["num_hidden_layers"] = options.layers
        if options.device == "cpu":
            config |= {"hidden_size": 256, "vocab_size": 4096, "moe_intermediate_size": 64, "num_experts": 16,
                       "shared_expert_intermediate_size": 64, "intermediate_size": 256, "dtype": "float32"}  # fmt: skip
        (model / "config.json").write_text(json.dumps(config))
    small = options.device == "cpu"
    flags: dict[str, Any] = {
        "device": options.device,
        "load_format": "auto" if options.model else "dummy",
        "dtype": options.dtype or ("auto" if small else "bfloat16"),
        "tensor_parallel_size": options.ranks,
        "max_num_seqs": 8 if small else 64,
        "max_num_batched_tokens": 256 if small else 8192,
        "max_model_len": 4096 if small else 32_768,
        "device_memory": f"{(48 if small else 10 * 1024) // options.ranks}MiB",
        "host_memory": "64MiB" if small else "16GiB",
        "disable_custom_all_reduce": options.nccl,
        "deterministic": options.deterministic,
        **more,
    }
    facts: list[EngineFacts] = []
    config = engine_config({"model": str(model), **flags})
    loop = build_engine(config, lambda told: None if isinstance(told, str) else facts.append(told), apart=options.apart)
    return Bench(loop, facts[0].vocab_size), facts[0]


def rank_processes() -> list[int]:
    """Pids of this process's ranks, in order."""
    children = (pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split())
    return sorted(
        int(pid) for pid in children if "stepwell.engine.ranks.process" in Path(f"/proc/{pid}/cmdline").read_text()
    )


def killed_s(bench: Bench) -> float:
    """Seconds from the end of one rank, under load, to that of the engine and all others."""
    bench.begin([bench.prompt(1000, seed) for seed in range(4)], 2000)
    for _ in range(8):
        bench.loop.step()
    began = time.perf_counter()
    os.kill(rank_processes()[-1], signal.SIGKILL)
    try:
        while True:
            bench.loop.step()
    except RankError as error:
        print(error)
    bench.loop.end(0.0)
    assert not rank_processes()
    return time.perf_counter() - began


def measured(options: argparse.Namespace, folder: Path, tell: Any) -> None:
    began = time.perf_counter()
    bench, facts = built(options, folder)
    small = options.device == "cpu"
    context, rows = (256, (1, 4)) if small else (4096, (1, 64) if options.brief else (1, 8, 64))
    tell("started_s", time.perf_counter() - began)
    tell("kernels", next(" ".join(row[1:]) for row in facts.memory_plan if row[0] == "kernels"))
    prompts = [bench.prompt(300 + 500 * i, i) for i in range(4)]
    cold, _ = bench.answers(prompts, 24)
    tell("answers", cold)
    tell("answers_likely", [bench.likely(prompt) for prompt in prompts])
    for count in rows:
        tell(f"decode_ms_{count}", bench.decode_ms(count, context))
    if not options.brief:
        _copied_and_computed(bench, prompts, options, tell)
    if rank_processes():
        tell("killed_s", killed_s(bench))
    else:
        bench.loop.end(0.0)


def _copied_and_computed(bench: Bench, prompts: Sequence[Any], options: argparse.Namespace, tell: Any) -> None:
    """Long prompts; the answers once more, resumed; both links."""
    long = 1024 if options.device == "cpu" else 16_384
    bench.prefill(long, 77)
    tell("prefill_tokens_per_s", max(bench.prefill(long, seed) for seed in (78, 79)))
    bench.rest()
    again, host = bench.answers(prompts, 24)
    tell("answers_again", again)
    tell("host_tokens", host)
    bench.rest()
    bench.loop.reset(None)
    pools = bench.loop.directory.pools
    pages = min(pools[Tier.DEVICE].total, pools[Tier.HOST].total, 1 << 13)
    bench.link(Tier.DEVICE, Tier.HOST, pages)
    for name, way in (("store", (Tier.DEVICE, Tier.HOST)), ("restore", (Tier.HOST, Tier.DEVICE))):
        tell(f"{name}_bytes_per_s", options.ranks * max(bench.link(*way, pages) for _ in range(2)))


def under_faults(options: argparse.Namespace, folder: Path, tell: Any) -> None:
    """Prompts that drive each other out of device and host, with copies failing on the last rank alone."""
    small = options.device == "cpu"
    faults = ("fail:*:*:chance=0.05", "delay:kv:*:chance=0.05:seconds=0.02")
    tight = {"device_memory": "8MiB" if small else "768MiB", "host_memory": "16MiB" if small else "2GiB"}
    bench, facts = built(options, folder, faults=faults, max_num_seqs=8, enforce_eager=small, **tight)
    rng, steps, prompts = np.random.default_rng(5), 0, [bench.prompt(400 + 37 * i, i) for i in range(40)]
    began = time.perf_counter()
    while steps < options.steps and time.perf_counter() - began < options.seconds:
        if bench.loop.stats().running + bench.loop.stats().waiting < 6:
            bench.begin([prompts[int(rng.integers(len(prompts)))]], int(rng.integers(8, 60)))
        bench.loop.step()
        steps += 1
    stats = bench.loop.stats()
    tell("steps", steps)
    tell("preemptions", stats.preemptions)
    tell("copied", {f"{a.name}>{b.name}": pages for (a, b), pages in stats.pages_copied.items()})
    tell("joint", str(stats.joint))
    tell("digests_equal", True)  # else the engine has ended with the sentence that says so
    bench.loop.end(0.0)
    del facts


def apart_by(one: dict[str, float], other: dict[str, float]) -> float:
    """The largest difference of log-probabilities among tokens that both have among their likeliest; infinite where there are few."""
    both = one.keys() & other.keys()
    return max(abs(one[token] - other[token]) for token in both) if 2 * len(both) > len(one) else float("inf")


def compared(one: Found, many: Found) -> Found:
    """As docs/numbers/tp.json has it; of brief runs, less."""
    decodes = [name.removeprefix("decode_ms_") for name in one if name.startswith("decode_ms_")]
    pairs = list(zip(*(chain.from_iterable(found["answers"]) for found in (one, many)), strict=True))
    found: Found = {}
    if "restore_bytes_per_s" in one and "restore_bytes_per_s" in many:
        found = {
            "prefill_over_one": many["prefill_tokens_per_s"] / one["prefill_tokens_per_s"],
            "restore_over_one": many["restore_bytes_per_s"] / one["restore_bytes_per_s"],
            "restore_GiB_per_s": many["restore_bytes_per_s"] / 2**30,
            "flips_resumed": sum(a != b for a, b in zip(many["answers"], many["answers_again"], strict=True)),
        }
    return found | {
        "decode_over_one": {n: one[f"decode_ms_{n}"] / many[f"decode_ms_{n}"] for n in decodes},
        "logprobs_apart": [apart_by(*two) for two in zip(one["answers_likely"], many["answers_likely"], strict=True)],
        "killed_s": many.get("killed_s"),
        "flips": [sum(a != b for a, b in pairs), len(pairs)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shape", default="M", choices=list(CONFIGS))
    parser.add_argument("--model", type=Path, help="a checkpoint in place of a shape with random weights")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--nccl", action="store_true", help="never sum in each other's memory")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--dtype", help="float32 tells rounding from errors")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if options.compare:
        print(json.dumps(compared(*(json.loads(path.read_text()) for path in options.compare))))
        return
    found: Found = {"shape": options.shape, "layers": options.layers, "ranks": options.ranks}

    def tell(found: Found, name: str, value: Any) -> None:
        found[name] = value
        if not name.startswith("answers"):
            print(f"{name:24} {value}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found))

    with tempfile.TemporaryDirectory() as folder:
        (under_faults if options.faults else measured)(options, Path(folder), partial(tell, found))
    print(json.dumps({name: value for name, value in found.items() if not name.startswith("answers")}))


if __name__ == "__main__":
    main()
