"""Whether a running server answers alike cold and resumed: greedy answers to prompts of ids, each asked twice.

    python bench/exact.py --url http://127.0.0.1:8000 --prompts 200 --least 1000 --most 32000 --new 64
    python bench/exact.py ... --fillers 6 --filler 100000        others in between push what is cached down a tier

The first asking must have read nothing from the cache, the second something. Where the two differ, the gap between cold's two likeliest
tokens there is told: rounding turns small gaps alone, a wrong byte any. Ends with one line of JSON:

    identical, differ       answers of the prompts
    gaps                    natural logarithm of cold's first over its second, at the first difference of each answer that differs
    cold_gaps_p50           the same over all cold tokens: with weights that leave it near 0, as random ones do, differences say nothing
    device, host, disk      tokens that the second askings were served from each tier
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Tokens, for each the gap of its two likeliest in nats, and prompt tokens from each tier."""

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    cached: dict[str, int]


class Server:
    def __init__(self, url: str, model: str, client: httpx.AsyncClient) -> None:
        self._url, self._model, self._client = url, model, client

    async def ask(self, prompt: list[int], new: int) -> Answer:
        """Raises httpx.HTTPStatusError where the server refuses."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True}
        wanted = {"return_token_ids": True, "logprobs": 2}
        reply = await self._client.post(f"{self._url}/v1/completions", json={**body, **wanted})
        reply.raise_for_status()
        told: dict[str, Any] = reply.json()
        choice = told["choices"][0]
        tops = [sorted(top.values(), reverse=True) for top in choice["logprobs"]["top_logprobs"]]
        gaps = tuple(top[0] - top[1] if len(top) > 1 else float("inf") for top in tops)
        return Answer(tuple(choice["token_ids"]), gaps, told["usage"]["prompt_tokens_details"])


def first_difference(one: Answer, other: Answer) -> int | None:
    """Index of the first token that differs."""
    return next((i for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)) if a != b), None)


async def compare(options: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(options.seed)

    def drawn(count: int) -> list[int]:
        return [int(token) for token in rng.integers(options.low, options.vocab, count)]

    prompts = [drawn(int(size)) for size in rng.integers(options.least, options.most + 1, options.prompts)]
    async with httpx.AsyncClient(timeout=options.timeout) as client:
        server = Server(options.url, options.model, client)
        cold = [await server.ask(prompt, options.new) for prompt in prompts]
        for _ in range(options.fillers):
            await server.ask(drawn(options.filler), 1)
        again = [await server.ask(prompt, options.new) for prompt in prompts]
    warm = sum(answer.cached["cached_tokens"] > 0 for answer in cold)
    unread = sum(answer.cached["cached_tokens"] == 0 for answer in again)
    if warm or unread:
        raise SystemExit(f"{warm} first askings read the cache and {unread} second ones did not: take another --seed")
    apart = [(at, one) for one, two in zip(cold, again, strict=True) if (at := first_difference(one, two)) is not None]
    return {
        "identical": len(prompts) - len(apart),
        "differ": len(apart),
        "gaps": [round(one.gaps[at], 4) for at, one in apart],
        "cold_gaps_p50": round(float(np.median([gap for one in cold for gap in one.gaps])), 4),
        **{tier: sum(a.cached[f"{tier}_tokens"] for a in again) for tier in ("device", "host", "disk")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="m")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--least", type=int, default=1000, help="tokens of the shortest prompt")
    parser.add_argument("--most", type=int, default=8000, help="tokens of the longest")
    parser.add_argument("--new", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--low", type=int, default=1000, help="least id that is drawn")
    parser.add_argument("--vocab", type=int, default=200_000, help="ids that are drawn lie below")
    parser.add_argument("--fillers", type=int, default=0, help="other prompts between first and second askings")
    parser.add_argument("--filler", type=int, default=100_000, help="tokens of each")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for an answer")
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps(asyncio.run(compare(parser.parse_args()))))


if __name__ == "__main__":
    main()
