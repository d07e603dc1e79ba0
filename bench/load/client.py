"""One streamed completion and what it showed: when each piece came, how many tokens it held, where its prompt came from."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import orjson

VOCAB = 200_000


class CallFailed(Exception):
    """The server refused a call, or its stream ended with an error."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`times`: seconds after the request was sent at which tokens came; `counts`: tokens at each; `cached`: prompt tokens by tier."""

    times: tuple[float, ...]
    counts: tuple[int, ...]
    tokens: tuple[int, ...]
    prompt: int
    cached: dict[str, int]

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.times[0]

    def gaps(self) -> list[float]:
        """Seconds a token between one piece and the next, as they came."""
        pairs = zip(self.times, self.times[1:], self.counts[1:], strict=False)
        return [(after - before) / count for before, after, count in pairs]


def drawn(rng: np.random.Generator, count: int, vocab: int = VOCAB) -> list[int]:
    """`count` ids below `vocab`, none of the first few, which may be special."""
    tokens: list[int] = rng.integers(min(1000, vocab // 4), vocab, count).tolist()
    return tokens


class Client:
    """Calls to one server, as many at once as are awaited. Use as `async with`."""

    def __init__(self, url: str, model: str, timeout: float) -> None:
        self._url, self._model = url.rstrip("/"), model
        limits = aiohttp.ClientTimeout(total=timeout)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=limits, read_bufsize=1 << 20
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def ask(self, prompt: list[int], new: int, **more: object) -> Reply:
        """`new` tokens for the prompt; `more` are further fields of the body. Raises CallFailed with what the server said."""
        body = {"prompt": prompt, "max_tokens": new, "temperature": 0, "stream": True, "ignore_eos": True, **more}
        body |= {"return_token_ids": True, "stream_options": {"include_usage": True}}
        sent = time.perf_counter()
        async with self._post(body) as answer:
            await _expect_well(answer)
            return await _read(answer.content.iter_any(), sent)

    async def behind(self, prompt: list[int], answer: list[int]) -> list[float]:
        """For each token of the answer, by how many nats it is behind the token that the model likes best there: 0 where it is that token.

        Prompt and answer are computed anew in one pass, without the cache. Raises CallFailed, as where the server scores no prompts.
        """
        body = {"prompt": prompt + answer, "max_tokens": 0, "prompt_logprobs": 1, "write_cache": False}
        async with self._post(body) as told:
            await _expect_well(told)
            scores = orjson.loads(await told.read())["choices"][0]["prompt_logprobs"]
        named = zip(answer, scores[len(prompt) :], strict=True)
        return [
            max(one["logprob"] for one in likely.values()) - likely[str(token)]["logprob"] for token, likely in named
        ]

    async def tokens(self, text: str) -> list[int]:
        """Ids of a text. Raises CallFailed."""
        async with self._post({"prompt": text}, "/tokenize") as told:
            await _expect_well(told)
            return list(orjson.loads(await told.read())["tokens"])

    def _post(self, body: dict[str, object], path: str = "/v1/completions") -> Any:
        data, headers = orjson.dumps({"model": self._model, **body}), {"content-type": "application/json"}
        return self._http.post(f"{self._url}{path}", data=data, headers=headers)


async def _expect_well(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        raise CallFailed(f"{answer.status}: {(await answer.text())[:300]}")


async def _read(pieces: AsyncIterator[bytes], sent: float) -> Reply:
    times: list[float] = []
    counts: list[int] = []
    tokens: list[int] = []
    usage: dict[str, Any] = {}
    rest = b""
    async for piece in pieces:
        now = time.perf_counter() - sent
        *lines, rest = (rest + piece).split(b"\n")
        came = 0
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = orjson.loads(line[6:])
            if "error" in event:
                raise CallFailed(str(event["error"])[:300])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or ()
                came += len(choice.get("token_ids") or ())
        if came:
            times.append(now)
            counts.append(came)
    if not times or not usage:
        raise CallFailed("the stream ended without a token or its usage")
    cached = {name: count for name, count in usage["prompt_tokens_details"].items() if isinstance(count, int)}
    return Reply(tuple(times), tuple(counts), tuple(tokens), usage["prompt_tokens"], cached)
