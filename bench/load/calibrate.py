"""What compute and calls cost on a running server, found over HTTP alone: a cost model and a front end for the simulation of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from openai import AsyncOpenAI

from load.client import Client, Reply, drawn
from stepwell.bench.fit import Decode, Prefill, fit_costs, least_squares
from stepwell.replay import wire
from stepwell.replay.cost import CostModel
from stepwell.replay.dialects import Dialect, speaks
from stepwell.replay.front import Front

SHORTEST = 256  # of a prompt to calibrate with: a resume computes up to a grid of 64
BESIDE, NEW = 64, 128  # tokens of prompts that come while others decode, and of their answers


@dataclass(frozen=True, slots=True)
class Sizes:
    """longest: tokens of the longest prompt; seqs: sequences that the server runs at once; lanes: calls at once; vocab: of its ids;
    device: tokens that its device holds; image: those that a state takes."""

    longest: int
    seqs: int
    lanes: int
    vocab: int
    device: int
    image: int


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What compute and copies cost, and a call beside them."""

    costs: CostModel
    front: Front


async def calibrate(client: Client, server: wire.Server, base: CostModel, sizes: Sizes) -> Calibrated:
    """Some fifteen seconds on a GPU. Raises CallFailed, StepwellError."""
    rng = np.random.default_rng(1)
    lengths = [size for part in (64, 32, 16, 8, 4, 2, 1) if (size := sizes.longest // part) >= SHORTEST]
    cold: list[Reply] = []
    waits: list[float] = []
    async with wire.connected(server) as replaying:
        model = await wire.first_model(replaying, server)
        for size in lengths:
            prompt = drawn(rng, size, sizes.vocab)
            cold.append(await client.ask(prompt, 1))
            waits.append(min([await _first(replaying, model, prompt) for _ in range(4)]))
        per_token = _slope(lengths, waits)
        prefills = [Prefill(size, one.ttft - per_token * size) for size, one in zip(lengths, cold, strict=True)]
        batch = Batch(client, rng, sizes)
        await batch.fill()
        costs = fit_costs(base, prefills, await _decodes(batch, sizes), 1e-3)
        costs = replace(costs, apart_s=await _apart(batch, sizes, costs))
        costs = replace(costs, load_s=await _loaded(batch, sizes, costs))
        call = float(np.median([_beside(costs, *pair, per_token) for pair in zip(lengths, waits, strict=True)]))
        front = Front(max(0.0, call), per_token)
        return Calibrated(costs, replace(front, shared=await _shared(replaying, model, rng, sizes, costs, front)))


class Batch:
    """Answers of `NEW` tokens side by side, behind prompts that have all but their last tokens in common: cached, so that nothing but
    decoding takes time."""

    def __init__(self, client: Client, rng: np.random.Generator, sizes: Sizes) -> None:
        self._client, self._rng, self._sizes = client, rng, sizes
        self._base = drawn(rng, sizes.longest // 2, sizes.vocab)

    def prompt(self, context: int) -> list[int]:
        return self.longer(self._base[:context])

    def longer(self, prompt: list[int]) -> list[int]:
        return prompt + drawn(self._rng, BESIDE, self._sizes.vocab)

    def foreign(self, context: int) -> list[int]:
        """A prompt that shares nothing with the others."""
        return drawn(self._rng, context, self._sizes.vocab)

    async def ask_all(self, prompts: list[list[int]]) -> None:
        """One after the other, a token each."""
        for prompt in prompts:
            await self._client.ask(prompt, 1)

    async def fill(self) -> None:
        """Compute what the prompts have in common."""
        await self._client.ask(self._base, 1)

    async def gap(self, many: int, context: int) -> float:
        """Seconds between two tokens while `many` decode, the median; of all of an answer where something else goes on as well."""
        replies = await asyncio.gather(*(self._client.ask(self.prompt(context), NEW) for _ in range(many)))
        low, high = max(reply.ttft for reply in replies), min(reply.times[-1] for reply in replies)
        inside = [[time for time in reply.times if low <= time <= high] for reply in replies]
        return float(np.median([(times[-1] - times[0]) / (len(times) - 1) for times in inside if len(times) > 1]))

    async def beside(self, many: int, context: int, prompts: Callable[[int], list[int]]) -> tuple[float, float, float]:
        """The same with one prompt after the other beside them, how many of those came in each gap, and their share from host."""
        stop = asyncio.Event()

        async def flow() -> list[Reply]:
            asked: list[Reply] = []
            while not stop.is_set():
                asked.append(await self._client.ask(prompts(len(asked)), 1))
            return asked

        flowing, began = asyncio.create_task(flow()), time.perf_counter()
        gap = await self.gap(many, context)
        took = time.perf_counter() - began
        stop.set()
        asked = await flowing
        return gap, len(asked) * gap / took, float(np.mean([reply.cached["host_tokens"] > 0 for reply in asked]))


async def _decodes(batch: Batch, sizes: Sizes) -> list[Decode]:
    few, far = max(2, sizes.seqs // 4), sizes.longest // 2
    wanted = (1, far // 16), (few, far // 16), (sizes.seqs, far // 16), (1, far), (few, far), (sizes.seqs, far)
    return [Decode(many, context + NEW // 2, await batch.gap(many, context)) for many, context in wanted]


async def _apart(batch: Batch, sizes: Sizes, costs: CostModel) -> float:
    """Seconds that a step takes longer for a short prompt in it, beside what its tokens cost."""
    many, context = max(1, sizes.seqs // 2), sizes.longest // 4
    alone = await batch.gap(many, context)
    gap, asked, _ = await batch.beside(many, context, lambda _: batch.prompt(context))
    return max(0.0, (gap - alone) / asked - _own(costs, context))


async def _loaded(batch: Batch, sizes: Sizes, costs: CostModel) -> float:
    """Seconds that a step takes longer for a prompt that was loaded from host, beside what any short prompt costs. 0 without a host tier.

    Fills the device one third over, so that those asked first have left it: of prompts asked in turn, each has when it comes again.
    """
    many, context = max(1, sizes.seqs // 2), sizes.longest // 8
    apart = [batch.foreign(context) for _ in range(4 * sizes.device // (3 * (context + sizes.image)))]
    await batch.ask_all(apart)
    alone = await batch.gap(many, context)
    gap, asked, loaded = await batch.beside(many, context, lambda at: batch.longer(apart[at % len(apart)]))
    each = (gap - alone) / asked - _own(costs, context) - costs.apart_s
    return max(0.0, each / loaded) if loaded > 0.5 else 0.0


def _own(costs: CostModel, context: int) -> float:
    """Seconds that the new tokens of a short prompt cost behind `context` others."""
    return BESIDE / costs.prefill_tokens_per_s + costs.attention_s_per_pair * BESIDE * context


async def _shared(
    client: AsyncOpenAI, model: str, rng: np.random.Generator, sizes: Sizes, costs: CostModel, front: Front
) -> float:
    """The share of a call's own time that calls at once take from each other."""
    size = sizes.longest // 4
    prompt = drawn(rng, size, sizes.vocab)
    await _first(client, model, prompt)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        await asyncio.gather(*(_first(client, model, prompt) for _ in range(sizes.lanes)))
        took.append(time.perf_counter() - began)
    computing = costs.pass_seconds([(size - BESIDE, BESIDE)] * sizes.lanes, 0, 0)
    alone = front.alone(size)
    queued = (min(took) - computing - alone) / ((sizes.lanes - 1) * alone) if alone > 0 and sizes.lanes > 1 else 0.0
    return float(np.clip(queued, 0.0, 1.0))


async def _first(client: AsyncOpenAI, model: str, prompt: list[int]) -> float:
    """Seconds to the first token as a live replay sees it: with what its own client takes for the call."""
    began = time.perf_counter()
    body = {"prompt": prompt, "temperature": 0, "model": model, "stream": True, "max_tokens": 1, "ignore_eos": True}
    waited = 0.0
    async for event in wire.events(client, Dialect.COMPLETIONS, body, "calibrating"):
        if not waited and speaks(Dialect.COMPLETIONS, event):
            waited = time.perf_counter() - began
    return waited


def _slope(lengths: Sequence[int], waits: Sequence[float]) -> float:
    """Seconds for each token of a prompt that is cached whole."""
    columns = np.stack([np.ones(len(lengths)), np.array(lengths, np.float64)], 1)
    return float(least_squares(columns, np.array(waits))[1])


def _beside(costs: CostModel, size: int, waited: float, per_token: float) -> float:
    """What a call with a cached prompt took beside its one pass, whatever grows with the prompt left out."""
    return waited - per_token * size - costs.pass_seconds([(size - BESIDE, BESIDE)], 0, 0)
