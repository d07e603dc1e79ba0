"""What answers that are held to a grammar cost a stream beside them.

    python bench/grammars.py                                  31 answers of the dearest grammar that the server takes
    python bench/grammars.py --pattern '[a-z]+' --answers 8

One stream alone, beside as many free answers, and beside answers that are held to the pattern, on a small model on the CPU. Ends with one
line of JSON:

    alone, free, held    tokens a second of the stream          longest    seconds between two of its tokens, beside held answers
    share                held over free                         answered   tokens of the held answers
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher

from stepwell.engine.build import build_engine
from stepwell.engine.config import engine_config
from stepwell.engine.owned import OwnedLoop
from stepwell.sched.request import Event, Request, SamplingParams, Tokens
from stepwell.server.read.trial import fault_of
from stepwell.testing.checkpoint import write_checkpoint

PROMPT = np.random.default_rng(0).integers(3, 512, 20).astype(np.int32)
ENDLESS = SamplingParams(100_000, ignore_eos=True)
FLAGS = {"device": "cpu", "device_memory": "64MiB", "host_memory": "0", "max_num_seqs": 32}


@dataclass(slots=True)
class Heard:
    """When the stream's tokens came, and how many the others had."""

    began: float
    times: list[float] = field(default_factory=list)
    others: int = 0

    def take(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Tokens("stream", new):
                    self.times += [time.monotonic()] * len(new)
                case Tokens(_, new):
                    self.others += len(new)

    @property
    def longest(self) -> float:
        return max(np.diff([self.began, *self.times, time.monotonic()]))


def played(loop: OwnedLoop, beside: list[Request], seconds: float) -> Heard:
    """A stream for so long, beside others. Nothing is left of them."""
    while [request for request in beside if not loop.prepare(request)]:
        time.sleep(0.01)
    for request in [Request("stream", PROMPT, ENDLESS), *beside]:
        loop.submit(request)
    heard = Heard(time.monotonic())
    while time.monotonic() < heard.began + seconds:
        heard.take(loop.step())
    for name in ["stream", *(request.id for request in beside)]:
        loop.abort(name)
    while loop.serving:
        loop.step()
    return heard


def main() -> None:
    """Entry of the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pattern", default="(a{1000}){30}")
    parser.add_argument("--answers", type=int, default=31)
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    grammar = LLMatcher.grammar_from_regex(args.pattern)
    if fault := fault_of(grammar):
        parser.error(f"the server refuses this pattern: {fault}")
    held = SamplingParams(60, grammar=grammar, temperature=1.0)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), hidden=64, layers=4, vocab=512)
        loop = build_engine(engine_config({"model": folder, **FLAGS}), lambda facts: None)
        try:
            runs = {
                name: played(loop, [Request(f"{name}-{i}", PROMPT, params) for i in range(count)], args.seconds)
                for name, params, count in (
                    ("alone", ENDLESS, 0),
                    ("free", ENDLESS, args.answers),
                    ("held", held, args.answers),
                )
            }
        finally:
            loop.end(0.0)
    speed = {name: round(len(heard.times) / args.seconds, 1) for name, heard in runs.items()}
    told = {"share": round(speed["held"] / speed["free"], 2), "longest": round(runs["held"].longest, 3)}
    print(json.dumps(speed | told | {"answered": runs["held"].others}))


if __name__ == "__main__":
    main()
