"""One streamed completion and what it showed: when each piece came, how many tokens it held, where its prompt came from."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import orjson

LEAST_ID, MOST_ID = 1_000, 200_000


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


def drawn(rng: np.random.Generator, count: int) -> list[int]:
    """`count` ids that any vocabulary of 200,000 holds."""
    return [int(token) for token in rng.integers(LEAST_ID, MOST_ID, count)]


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

    async def ask(self, prompt: list[int], new: int) -> Reply:
        """`new` tokens for the prompt. Raises CallFailed with what the server said."""
        body = orjson.dumps({"model": self._model, "prompt": prompt, "max_tokens": new, "temperature": 0, "stream": True,
                             "ignore_eos": True, "return_token_ids": True, "stream_options": {"include_usage": True}})  # fmt: skip
        sent = time.perf_counter()
        headers = {"content-type": "application/json"}
        async with self._http.post(f"{self._url}/v1/completions", data=body, headers=headers) as answer:
            if answer.status != 200:
                raise CallFailed(f"{answer.status}: {(await answer.text())[:300]}")
            return await _read(answer.content.iter_any(), sent)


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
