"""Stepwell against Transformers' `generate`: the same checkpoint files, the same prompts, the same run.

    python bench/cpu.py                        writes the demo checkpoint to a temporary directory
    python bench/cpu.py --model DIR            any checkpoint that both can load

Every prompt is random and used once by each engine, so that no cache helps; Stepwell's cache is on and pays its way.
Both engines take turns within a round, greedy, in the checkpoint's own precision, with the same number of threads.

Prints a table, then one line of JSON; each figure is Stepwell's speed over Transformers', the median of the rounds:

    prefill_over_hf    one long prompt, one token: prompt tokens a second
    decode_over_hf_1   one request: answer tokens a second after the first token
    decode_over_hf_8   eight requests at once, prompts of eight lengths: answer tokens a second, prefill included,
                       against the faster of Transformers' two ways (one padded batch; one after the other)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from stepwell.engine.llm import LLM
from stepwell.sched.request import SamplingParams
from stepwell.sched.stats import EngineStats
from stepwell.testing.checkpoint import write_checkpoint

Prompt: TypeAlias = list[int]
Answer: TypeAlias = list[int]


class Engine(Protocol):
    """Answers prompts greedily with exactly `tokens` tokens each."""

    def answer(self, prompts: Sequence[Prompt], tokens: int) -> list[Answer]: ...


class Stepwell:
    """All prompts at once."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def answer(self, prompts: Sequence[Prompt], tokens: int) -> list[Answer]:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        return [list(completion.token_ids) for completion in self._llm.generate(list(prompts), params)]


class Transformers:
    """All prompts in one batch, padded on the left, or one after the other."""

    def __init__(self, model: Any, batched: bool) -> None:
        self._model = model
        self._batched = batched

    def answer(self, prompts: Sequence[Prompt], tokens: int) -> list[Answer]:
        if not self._batched:
            return [self._generate([prompt], tokens)[0] for prompt in prompts]
        return self._generate(prompts, tokens)

    def _generate(self, prompts: Sequence[Prompt], tokens: int) -> list[Answer]:
        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        output = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        answers: list[Answer] = output[:, width:].tolist()
        return answers


@dataclass(frozen=True, slots=True)
class Timed:
    """What an engine took for one job, and what it answered."""

    seconds: float
    answers: list[Answer]


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second of every engine in every job, and how many of the eight answers both engines agree on."""

    prefill: dict[str, float]
    decode_1: dict[str, float]
    decode_8: dict[str, float]
    agree: int


OURS, BATCH, SINGLE = "stepwell", "transformers, one batch", "transformers, one by one"
TOGETHER = 8


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    with ExitStack() as stack:
        path = options.model or write_checkpoint(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        llm = stack.enter_context(open_stepwell(path, options))
        model = load_transformers(path)
        engines: dict[str, Engine] = {
            OURS: Stepwell(llm),
            SINGLE: Transformers(model, batched=False),
            BATCH: Transformers(model, batched=True),
        }
        prompts = random_prompts(llm.facts.vocab_size, options.seed)
        with progress_bar() as bar:
            task = bar.add_task("warming up", total=options.rounds + 1)
            play(engines, prompts, options)
            before = llm.stats()
            rounds = []
            for number in range(options.rounds):
                bar.update(task, advance=1, description=f"round {number + 1}")
                rounds.append(play(engines, prompts, options))
        after = llm.stats()
    console = Console()
    console.print(speed_table(rounds, options))
    console.print(control_plane(before, after), soft_wrap=True)
    console.print(f"greedy answers that agree: {sum(r.agree for r in rounds)} of {TOGETHER * len(rounds)}")
    print(json.dumps(figures(rounds)))


def open_stepwell(path: Path, options: argparse.Namespace) -> LLM:
    return LLM(
        model=str(path),
        device="cpu",
        device_memory=options.device_memory,
        host_memory=options.host_memory,
        max_num_batched_tokens=options.max_num_batched_tokens,
    )


def control_plane(before: EngineStats, after: EngineStats) -> str:
    """What scheduler and cache took between two looks, beside the computing."""
    steps, admissions = after.steps - before.steps, after.admissions - before.admissions
    microseconds = (after.sched_seconds - before.sched_seconds) * 1e6
    return (
        f"scheduler and cache: {microseconds / max(1, steps):,.0f} µs a step ({steps:,} steps), "
        f"{microseconds / max(1, admissions):,.0f} µs an admitted request ({admissions:,} requests)"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="directory of a checkpoint (default: the demo's)")
    parser.add_argument("--prompt-tokens", type=int, default=1024, help="length of the long prompt (default 1024)")
    parser.add_argument("--short-tokens", type=int, default=64, help="shortest of the eight prompts (default 64)")
    parser.add_argument("--answer-tokens", type=int, default=64, help="tokens of each answer (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after one to warm up (default 5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of each (default: all)")
    parser.add_argument("--device-memory", default="512MiB", help="Stepwell's device arena (default 512MiB)")
    parser.add_argument("--host-memory", default="512MiB", help="Stepwell's host tier (default 512MiB)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="Stepwell's step (default 2048)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default 0)")
    return parser.parse_args()


def load_transformers(path: Path) -> Any:
    """The oracle, as its own library loads it, quietly."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return AutoModelForCausalLM.from_pretrained(path, dtype="auto")


class Prompts(Protocol):
    """Makes prompts of given lengths that were never used before."""

    def __call__(self, lengths: Sequence[int]) -> list[Prompt]: ...


def random_prompts(vocab: int, seed: int) -> Prompts:
    rng = np.random.default_rng(seed)
    first = min(16, vocab - 1)  # leave special tokens alone

    def draw(lengths: Sequence[int]) -> list[Prompt]:
        return [rng.integers(first, vocab, length).tolist() for length in lengths]

    return draw


def play(engines: dict[str, Engine], prompts: Prompts, options: argparse.Namespace) -> Round:
    """One round: every engine does every job on the same prompts, one engine right after the other."""
    tokens, long = options.answer_tokens, options.prompt_tokens
    one = {name: engines[name] for name in (OURS, SINGLE)}
    prefill = race(one, prompts([long]), 1)
    first = race(one, prompts([options.short_tokens]), 1)
    whole = race(one, prompts([options.short_tokens]), tokens + 1)
    lengths = [options.short_tokens + 16 * i for i in range(TOGETHER)]
    eight = race(engines, prompts(lengths), tokens)
    return Round(
        {name: long / job.seconds for name, job in prefill.items()},
        {name: tokens / max(1e-9, whole[name].seconds - first[name].seconds) for name in one},
        {name: TOGETHER * tokens / job.seconds for name, job in eight.items()},
        sum(a == b for a, b in zip(eight[OURS].answers, eight[SINGLE].answers, strict=True)),
    )


def race(engines: dict[str, Engine], prompts: list[Prompt], tokens: int) -> dict[str, Timed]:
    return {name: timed(engine, prompts, tokens) for name, engine in engines.items()}


def timed(engine: Engine, prompts: list[Prompt], tokens: int) -> Timed:
    begun = time.perf_counter()
    answers = engine.answer(prompts, tokens)
    seconds = time.perf_counter() - begun
    short = [len(answer) for answer in answers if len(answer) != tokens]
    if short:
        raise SystemExit(f"an answer has {short[0]} tokens instead of {tokens}: the comparison would not be fair")
    return Timed(seconds, answers)


def figures(rounds: list[Round]) -> dict[str, float]:
    """Medians over the rounds of Stepwell's speed over Transformers' in that round."""
    ratios = {
        "prefill_over_hf": [r.prefill[OURS] / r.prefill[SINGLE] for r in rounds],
        "decode_over_hf_1": [r.decode_1[OURS] / r.decode_1[SINGLE] for r in rounds],
        "decode_over_hf_8": [r.decode_8[OURS] / max(r.decode_8[BATCH], r.decode_8[SINGLE]) for r in rounds],
    }
    return {name: round(statistics.median(values), 3) for name, values in ratios.items()}


def speed_table(rounds: list[Round], options: argparse.Namespace) -> Table:
    table = Table(title=f"tokens a second, median of {len(rounds)} rounds, {options.threads} threads")
    table.add_column("")
    table.add_column(f"prefill\n1 × {options.prompt_tokens}", justify="right")
    table.add_column(f"decode\n1 × {options.answer_tokens}", justify="right")
    table.add_column(f"all in\n{TOGETHER} × {options.answer_tokens}", justify="right")
    for name in (OURS, SINGLE, BATCH):
        jobs = ([r.prefill for r in rounds], [r.decode_1 for r in rounds], [r.decode_8 for r in rounds])
        table.add_row(name, *(median(job, name) for job in jobs))
    return table


def median(job: list[dict[str, float]], name: str) -> str:
    return f"{statistics.median(speeds[name] for speeds in job):,.0f}" if name in job[0] else "–"


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    main()
