"""Train the small model for a while, write it, and judge it.

    python -m tiny.train --corpus DIR --out DIR [--seconds 300] [--batch 32] [--tokens 2048]

--corpus is what `tiny.corpus` wrote. The learning rate follows the clock, so that it has come down when the time is over. A checkpoint
is written every minute. Ends with one line of JSON: the figures of `tiny.judge`, of the weights as written, tokens trained on and tokens/s.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny import checkpoint, masks
from tiny.corpus import MARKED, POSITIONS, load
from tiny.judge import judge
from tiny.network import DeltaNet, Mlp, Network, Sizes
from tiny.optimiser import Optimiser

_WARM = 0.02
_HELD = 0.5
"""Shares of the time in which the rate rises, and up to which it is held."""
_UNSAID = 0.25
"""Weight of a token that the model only reads, against one that it is to say."""
_DRAFTS = 0.3
"""Weight of the drafter's loss."""
_CLIP = 1.0
_ALIKE = 0.95
"""Cosine of gradients, compiled and not, in bfloat16 (0.994 was seen on a CPU): less is a fault."""
_JUDGING = 12.0
"""Seconds kept for writing and judging."""
_SMALL = Sizes(
    hidden=64,
    layers=4,
    width=128,
    heads=2,
    kv_heads=1,
    head_dim=32,
    key_heads=1,
    value_heads=2,
    linear_dim=32,
    rotary=8,
)
"""For trying the script without a GPU."""


@dataclass(frozen=True, slots=True)
class Plan:
    """batch × tokens a step, at learning rate `rate` at most; `seconds` are for everything: compiling, training, judging."""

    batch: int
    tokens: int
    seconds: float
    rate: float
    seed: int

    def rate_at(self, share: float) -> float:
        """At a share of the time: up, level, and down to nothing."""
        down = min(1.0, (1 - share) / (1 - _HELD))
        return self.rate * max(0.0, min(share / _WARM if share < _WARM else 1.0, down))


def batch(words: Tensor, plan: Plan, generator: torch.Generator) -> Tensor:
    """Marked tokens [batch, tokens + 1], from random places."""
    starts = torch.randint(len(words) - plan.tokens - 1, (plan.batch, 1), generator=generator, device=words.device)
    return words[starts + torch.arange(plan.tokens + 1, device=words.device)].long()


def losses(network: Network, marked: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted nats a token, of the decoder and of the drafter."""
    ids = marked & (MARKED - 1)
    weights = torch.where(marked[:, 1:] >= MARKED, 1.0, _UNSAID).flatten()
    weights = weights / weights.sum()
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden, drafts = network.hidden(ids[:, :-1], mask)
        found = [network.logits(x).flatten(0, 1) for x in (hidden, drafts)]
    wanted = ids[:, 1:].flatten()
    own, drafted = ((F.cross_entropy(x.float(), wanted, reduction="none") * weights).sum() for x in found)
    return own, drafted


def likeness(network: Network, marked: Tensor, mask: Tensor) -> float:
    """Cosine between the gradients of a network as it is compiled and as it is written; 1 where they are the same."""
    found = []
    for stance in ("force_eager", "default"):
        with torch.compiler.set_stance(stance):
            own, drafted = losses(network, marked, mask)
            (own + _DRAFTS * drafted).backward()
        found.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
        network.zero_grad(set_to_none=True)
    return F.cosine_similarity(*found, dim=0).item()


class Training:
    """Owns the network, its optimiser and the random numbers."""

    def __init__(self, network: Network, words: Tensor, plan: Plan) -> None:
        self.network, self.plan, self._words = network, plan, words
        self._optimiser = Optimiser(network)
        self._generator = torch.Generator(words.device).manual_seed(plan.seed)
        self.steps = 0

    def step(self, rate: float) -> tuple[Tensor, Tensor]:
        """One step; the losses stay on the device."""
        plan = self.plan
        marked = batch(self._words, plan, self._generator)
        own, drafted = losses(self.network, marked, masks.drawn(plan.batch, plan.tokens, self._generator))
        (own + _DRAFTS * drafted).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), _CLIP)
        self._optimiser.step(rate)
        self._optimiser.clear(self.network.parameters())
        self.steps += 1
        return own.detach(), drafted.detach()


def train(training: Training, end: float, save: float, write: Callable[[], None]) -> float:
    """Train until `end` on the clock of `time.perf_counter`, and at least one step. Returns tokens/s behind that step.

    Prints a line now and then, and calls `write` every `save` seconds.
    """
    plan, device = training.plan, next(training.network.parameters()).device
    began = time.perf_counter()
    training.step(0.0)
    _wait(device)
    start = told = saved = time.perf_counter()
    seconds = max(end - start, 1e-3)
    print(f"first step {start - began:.1f} s; {seconds:.0f} s to train", flush=True)
    print(f"{'s':>6} {'steps':>6} {'M tokens':>9} {'loss':>7} {'drafts':>7} {'M tok/s':>8}", flush=True)
    first = training.steps
    while (now := time.perf_counter()) < end:
        own, drafted = training.step(plan.rate_at((now - start) / seconds))
        if training.steps % 8 == 0:
            _wait(device)  # the host must not run ahead of the clock
        if now - told > seconds / 15:
            told = now
            done = (training.steps - first) * plan.batch * plan.tokens
            rate = done / (time.perf_counter() - start) / 1e6
            row = f"{now - start:6.0f} {training.steps:6} {done / 1e6:9.1f} {own.item():7.4f} {drafted.item():7.4f} {rate:8.3f}"
            print(row, flush=True)
        if now - saved > save:
            saved = now
            write()
    _wait(device)
    return (training.steps - first) * plan.batch * plan.tokens / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _check_compiled(network: Network, words: Tensor, plan: Plan) -> None:
    """End here where what was compiled computes something else."""
    generator = torch.Generator(words.device).manual_seed(plan.seed + 1)
    began = time.perf_counter()
    marked = batch(words, plan, generator)
    alike = likeness(network, marked, masks.drawn(plan.batch, plan.tokens, generator))
    print(f"compiled in {time.perf_counter() - began:.1f} s; gradients alike to {alike:.5f}", flush=True)
    if not alike > _ALIKE:
        raise SystemExit(f"gradients as compiled are alike to {alike:.5f} only, not {_ALIKE}: use --eager")


def words_of(path: Path, device: torch.device) -> Tensor:
    return torch.from_numpy(load(path).astype(np.int32)).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that `tiny.corpus` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint; made if missing")
    parser.add_argument(
        "--seconds", type=float, default=300, help="time for everything, compiling and judging included (default 300)"
    )
    parser.add_argument("--batch", type=int, default=32, help="sequences a step (default 32)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of each, a multiple of 64 (default 2048)")
    parser.add_argument("--rate", type=float, default=4e-3, help="highest learning rate (default 4e-3)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default 0)")
    parser.add_argument("--small", action="store_true", help="a network of 0.5 million parameters, to try the script")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    options = parser.parse_args()
    plan = Plan(options.batch, options.tokens, options.seconds, options.rate, options.seed)
    print(json.dumps(run(plan, options.corpus, options.out, small=options.small, compiled=not options.eager)))


def run(plan: Plan, corpus: Path, out: Path, *, small: bool, compiled: bool) -> dict[str, float]:
    """Train, write, judge. Returns the figures."""
    end = time.perf_counter() + plan.seconds - _JUDGING
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    held = load(corpus / "held.xz")
    words = words_of(corpus / "train.xz", device)
    sizes = _SMALL if small else Sizes()
    vocab = int((words & (MARKED - 1)).max()) + 1
    network = Network(replace(sizes, vocab=max(sizes.vocab, vocab))).to(device)
    if compiled:
        for part in network.modules():
            if isinstance(part, DeltaNet | Mlp):  # attention has its own kernel
                part.compile()

    def write() -> None:
        checkpoint.write(out, network, corpus, POSITIONS)

    if compiled:
        _check_compiled(network, words, plan)
    speed = train(Training(network, words, plan), end, 60.0, write)
    write()
    checkpoint.read(out, network)  # what was written is what is judged
    with torch.compiler.set_stance("force_eager"):
        verdict = judge(network, held, plan.tokens, device)
    return {**verdict.rounded(), "tokens_per_s": round(speed)}


if __name__ == "__main__":
    main()
