"""The four runs: prefill of new prompts, decode at a batch size, resuming a long prompt, agents that grow their prompts.

Each returns figures as plain values: seconds, milliseconds (`_ms`), tokens a second (`_tok_s`), shares. A call that fails ends its
run with CallFailed: a figure over the calls that happened to succeed is none. Where sequences run side by side, `sound` tells whether their
answers are the model's (`load/sound.py`); that is asked after the clock has stopped.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from load.client import VOCAB, Client, Reply, drawn
from load.sound import Sample, sound, spread

# Tokens at either end of an answer in which some sequences of a batch may still be, or already have stopped, decoding.
EDGE = 16
# Answers of a run that are computed anew.
SCORED = 2


@dataclass(frozen=True, slots=True)
class Agents:
    """Conversations at once: a first prompt with a beginning that all share, then answer and new text, turn by turn."""

    count: int = 32
    first: int = 12_288
    shared: int = 4_096
    turns: int = 6
    grow: int = 2_048
    new: int = 128

    def best(self) -> float:
        """Share of prompt tokens that a cache which loses nothing and cuts at any token serves."""
        length, asked, served = self.first, 0, 0
        for turn in range(self.turns):
            asked += length
            served += length - self.grow if turn else 0
            length += self.new + self.grow
        return (self.count * served + (self.count - 1) * self.shared) / (self.count * asked)


async def prefill(client: Client, rng: np.random.Generator, size: int, repeat: int = 3) -> dict[str, float]:
    """Time to the first token of prompts that nobody has asked before, one at a time; the median."""
    found = [(await client.ask(drawn(rng, size), 1)).ttft for _ in range(repeat)]
    middle = float(np.median(found))
    return {"ttft_s": middle, "tok_s": size / middle}


async def decode(
    client: Client, rng: np.random.Generator, batch: int, prompt: int = 4096, new: int = 256, vocab: int = VOCAB
) -> dict[str, Any]:
    """Time between tokens while all sequences of a batch decode."""
    prompts = [drawn(rng, prompt, vocab) for _ in range(batch)]
    replies = await asyncio.gather(*(client.ask(one, new) for one in prompts))
    low = max(reply.times[min(EDGE, len(reply.times) - 1)] for reply in replies)
    high = min(reply.times[max(len(reply.times) - 1 - EDGE, 0)] for reply in replies)
    gaps = [gap for reply in replies for at, gap in zip(reply.times, reply.gaps(), strict=False) if low <= at < high]
    if not gaps:
        raise ValueError(f"{batch} sequences of {new} tokens never all decoded at once: the last began at {low:.2f} s")
    samples = [Sample(*pair) for pair in zip(prompts, replies, strict=True)]
    return {
        "itl_ms_p50": 1e3 * float(np.median(gaps)),
        "itl_ms_p99": 1e3 * float(np.percentile(gaps, 99)),
        "sound": await sound(client, spread(samples, SCORED), vocab),
    }


async def resume(
    client: Client,
    rng: np.random.Generator,
    size: int = 102_400,
    grow: int = 1_000,
    fillers: int = 0,
    pause: float = 1.0,
) -> dict[str, Any]:
    """A long prompt cold, then with other new tokens behind it: at once, and (with `fillers`) after as many others have pushed it out."""

    def told(reply: Reply) -> dict[str, Any]:
        return {"ttft_s": reply.ttft, "cached": reply.cached}

    base = drawn(rng, size)
    found = {"cold": told(await client.ask(base, 8))}
    await asyncio.sleep(pause)
    found["device"] = told(await client.ask(base + drawn(rng, grow), 8))
    if fillers:
        for _ in range(fillers):
            await client.ask(drawn(rng, size), 1)
        await asyncio.sleep(pause)
        found["pushed_out"] = told(await client.ask(base + drawn(rng, grow), 8))
    return found


async def agents(client: Client, rng: np.random.Generator, shape: Agents = Agents()) -> dict[str, Any]:
    """Conversations with no time to think: what they waited, and what of their prompts the cache served."""
    shared = drawn(rng, shape.shared)
    firsts = [shared + drawn(rng, shape.first - shape.shared) for _ in range(shape.count)]
    more = [[drawn(rng, shape.grow) for _ in range(shape.turns - 1)] for _ in range(shape.count)]

    async def converse(prompt: list[int], more: list[list[int]]) -> list[Sample]:
        turns = [Sample(prompt, await client.ask(prompt, shape.new))]
        for text in more:
            prompt = prompt + list(turns[-1].reply.tokens) + text
            turns.append(Sample(prompt, await client.ask(prompt, shape.new)))
        return turns

    began = time.perf_counter()
    done = await asyncio.gather(*(converse(first, texts) for first, texts in zip(firsts, more, strict=True)))
    wall = time.perf_counter() - began
    turns = [turn for conversation in done for turn in conversation]
    replies = [turn.reply for turn in turns]
    ttft, gaps = [reply.ttft for reply in replies], [1e3 * gap for reply in replies for gap in reply.gaps()]
    asked = sum(reply.prompt for reply in replies)
    tiers = {name: sum(reply.cached.get(name, 0) for reply in replies) / asked for name in sorted(replies[0].cached)}
    return {
        "wall_s": wall,
        **{f"ttft_p{p}_s": float(np.percentile(ttft, p)) for p in (50, 99)},
        **{f"itl_p{p}_ms": float(np.percentile(gaps, p)) for p in (50, 99)},
        "cached": tiers.get("cached_tokens", 0.0),
        "best": shape.best(),
        "by_tier": {name: share for name, share in tiers.items() if name != "cached_tokens"},
        "sound": await sound(client, spread(turns, SCORED)),
    }
