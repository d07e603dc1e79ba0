"""Whether a running server answers alike cold and resumed: greedy answers to prompts of ids, each asked three times, many at once.

    python bench/exact.py --url http://127.0.0.1:8000 --prompts 200 --most 32000 --new 64
    python bench/exact.py --url … --grown "Question:"       prompts that a trained model has written itself from this beginning, drawn

    cold ─ again, at once (its prompt is on the device) ─ again, after `--lag` other prompts have come (out of host, if the pool is small)

Lengths run from --least to --most, most of them short. A first asking must have read nothing from the cache. Where an answer differs, the
server is asked by how many nats the token that came is behind the model's first choice (0: a tie that rounding broke). With random
weights such distances are small, and answers turn by rounding alone. `cold_again` says how often: the first --again prompts asked cold once
more, in other company; nothing of the cache is in that. Ends with one line of JSON:

    device, host, cold_again   for each asking but the first: answers identical, differ; prompts and share of tokens that came from the tier
    agreed                     over the answers that differ, tokens before the first difference, on average
    flips                      (asking, first token that differs, nats as above or null), twenty at most
    worst_flip                 the largest of these nats
    sound                      see `load/sound.py`: whether cold answers are the model's at all
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from load.client import CallFailed, Client, Reply, drawn
from load.sound import Sample, sound, spread

TOLD, SCORED = 20, 4
LATER = ("device", "host")


@dataclass(slots=True)
class Case:
    """A prompt and its answers by asking."""

    prompt: list[int]
    replies: dict[str, Reply] = field(default_factory=dict)

    def flip(self, name: str) -> int | None:
        """Index of the first token of an asking that differs from cold."""
        pairs = zip(self.replies["cold"].tokens, self.replies[name].tokens, strict=True)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), None)


def lengths(rng: np.random.Generator, count: int, least: int, most: int) -> list[int]:
    """Most of them short: the median is half as much again as `least` where `most` is 32 times it."""
    return [int(least * (most / least) ** share) for share in rng.random(count) ** 3]


async def grown(client: Client, beginning: str, sizes: list[int], at_once: int) -> list[list[int]]:
    """Prompts of these lengths that the model has drawn, each from a seed of its own: what it was trained on, as far as it was."""
    start, room = await client.tokens(beginning), asyncio.Semaphore(at_once)

    async def grow(seed: int, size: int) -> list[int]:
        async with room:
            drawing = {"temperature": 1.0, "seed": seed, "write_cache": False}
            return start + list((await client.ask(start, max(1, size - len(start)), **drawing)).tokens)

    return list(await asyncio.gather(*(grow(seed, size) for seed, size in enumerate(sizes))))


class Play:
    """All askings, in an order that puts `lag` first askings between a prompt's second and third, `at_once` at a time."""

    def __init__(self, client: Client, new: int, at_once: int) -> None:
        self._client, self._new = client, new
        self._room = asyncio.Semaphore(at_once)

    async def run(
        self, cases: list[Case], fillers: list[list[int]], lag: int, seconds: float = float("inf")
    ) -> list[Case]:
        """The cases that were asked three times: all, or as many as were begun within `seconds`.

        Raises an ExceptionGroup with the first call that fails; the others are given up."""
        firsts: list[asyncio.Task[None]] = []
        until, asked = time.perf_counter() + seconds, 0
        async with asyncio.TaskGroup() as group:

            async def third(at: int) -> None:
                await firsts[at]
                await self._room.acquire()
                group.create_task(self._leaving(self._again(cases[at], "host")))

            for at in range(len(cases) + len(fillers)):
                await self._room.acquire()
                if time.perf_counter() > until:
                    self._room.release()
                    break
                if at < len(cases):
                    firsts.append(group.create_task(self._leaving(self._first(cases[at]))))
                else:
                    group.create_task(self._leaving(self._client.ask(fillers[at - len(cases)], 1)))
                asked = at + 1
                if at >= lag:
                    await third(at - lag)
            for at in range(max(0, asked - lag), len(firsts)):
                await third(at)
        return cases[: len(firsts)]

    async def cold_again(self, cases: list[Case]) -> None:
        """Once more without the cache, in another order."""

        async def ask(case: Case) -> None:
            async with self._room:
                await self._again(case, "cold_again", read_cache=False, write_cache=False)

        await asyncio.gather(*(ask(case) for case in reversed(cases)))

    async def _leaving(self, work: Awaitable[Any]) -> None:
        try:
            await work
        finally:
            self._room.release()

    async def _first(self, case: Case) -> None:
        await self._again(case, "cold")
        await self._again(case, "device")

    async def _again(self, case: Case, name: str, **more: object) -> None:
        case.replies[name] = await self._client.ask(case.prompt, self._new, **more)


def told(cases: list[Case], name: str) -> dict[str, Any]:
    """How the answers of an asking compare with cold's, and where their prompts came from."""
    apart = [at for case in cases if (at := case.flip(name)) is not None]
    found: dict[str, Any] = {"identical": len(cases) - len(apart), "differ": len(apart)}
    if apart:
        found["agreed"] = round(float(np.mean(apart)), 1)
    if name in LATER:
        served = [case.replies[name].cached[f"{name}_tokens"] for case in cases]
        found["prompts_from_tier"] = sum(count > 0 for count in served)
        found["from_tier"] = round(sum(served) / sum(len(case.prompt) for case in cases), 4)
    return found


async def flips(client: Client, cases: list[Case]) -> list[tuple[str, int, float | None]]:
    """The first flips of each asking, with nats; None where the server scores no prompts."""
    found: list[tuple[str, int, float | None]] = []
    for name in LATER:
        apart = [(case, at) for case in cases if (at := case.flip(name)) is not None]
        for case, at in sorted(apart, key=lambda pair: len(pair[0].prompt))[: TOLD // len(LATER)]:
            try:
                nats: float | None = (await client.behind(case.prompt, list(case.replies[name].tokens[: at + 1])))[at]
            except CallFailed:
                nats = None
            found.append((name, at, nats))
    return found


async def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that the module's text names."""
    rng = np.random.default_rng(options.seed)
    sizes = lengths(rng, options.prompts + options.lag, options.least, options.most)
    async with Client(options.url, options.model, options.timeout) as client:
        if options.grown is None:
            prompts = [drawn(rng, size, options.vocab) for size in sizes]
        else:
            prompts = await grown(client, options.grown, sizes, options.at_once)
        cases = [Case(prompt) for prompt in prompts[options.first : options.prompts]]
        began = time.perf_counter()
        play = Play(client, options.new, options.at_once)
        cases = await play.run(cases, prompts[options.prompts :], options.lag, options.seconds)
        again = cases[: options.again]
        await play.cold_again(again)
        took = time.perf_counter() - began
        _expect_cold(cases)
        short = sorted((Sample(case.prompt, case.replies["cold"]) for case in cases), key=lambda one: len(one.prompt))
        found = {name: told(cases, name) for name in LATER} | {"cold_again": told(again, "cold_again")}
        turned = await flips(client, cases)
        checked = await sound(client, spread(short[: len(short) // 2 + 1], SCORED), options.vocab)
    known = [nats for _, _, nats in turned if nats is not None]
    return {
        "prompts": len(cases),
        "prompt_tokens": sum(len(case.prompt) for case in cases),
        "seconds": round(took, 1),
        **found,
        "flips": turned,
        "worst_flip": max(known, default=None),
        "sound": checked,
    }


def _expect_cold(cases: list[Case]) -> None:
    """Raises SystemExit where a first asking was none."""
    if warm := sum(case.replies["cold"].cached["cached_tokens"] > 0 for case in cases):
        raise SystemExit(f"{warm} first askings read the cache: take another --seed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="m")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--first", type=int, default=0, help="leave out so many of them: an earlier run has had them")
    parser.add_argument("--again", type=int, default=16, help="prompts that are asked cold twice")
    parser.add_argument("--least", type=int, default=1000, help="tokens of the shortest prompt")
    parser.add_argument("--most", type=int, default=8000, help="tokens of the longest")
    parser.add_argument("--new", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--vocab", type=int, default=200_000, help="ids that are drawn lie below")
    parser.add_argument("--grown", metavar="TEXT", help="have the model write the prompts, from this beginning")
    parser.add_argument("--at-once", type=int, default=32, help="prompts at a time")
    parser.add_argument("--lag", type=int, default=0, help="other prompts between a prompt's second and third asking")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no prompt later; those begun are told"
    )
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for an answer")
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps(asyncio.run(compare(parser.parse_args()))))


if __name__ == "__main__":
    main()
