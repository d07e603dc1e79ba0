"""A server of the OpenAI API, ours or another's, asked by `/v1/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepwell.base.errors import ConfigError
from stepwell.eval.subject import Answer, Sources, Told
from stepwell.eval.task import STOPS
from stepwell.replay.wire import Server, connected, first_model, usage_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class RemoteSubject:
    """Asks `at_once` prompts side by side. Which tier serves a pass is the server's own matter."""

    def __init__(self, server: Server, max_tokens: int, at_once: int) -> None:
        self._server = server
        self._max_tokens = max_tokens
        self._at_once = at_once

    @property
    def name(self) -> str:
        return self._server.base

    def answer(self, prompts: Sequence[str], told: Told) -> list[Answer]:
        return asyncio.run(self._all(prompts, told))

    def between(self) -> None:
        """Nothing can be seen to from here."""

    def failed_loads(self) -> int | None:
        """Since the server's start; our own counts them, None from any other."""
        import httpx

        with httpx.Client(trust_env=False, timeout=10.0, headers=self._headers()) as client:
            try:
                found = client.get(f"{self._server.base}/metrics")
            except httpx.HTTPError:
                return None
        return failed_of(found.text) if found.status_code == 200 else None

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._server.api_key}"}

    async def _all(self, prompts: Sequence[str], told: Told) -> list[Answer]:
        from openai import OpenAIError

        places = asyncio.Semaphore(self._at_once)
        async with connected(self._server) as client:
            model = await first_model(client, self._server)

            async def ask(prompt: str) -> Answer:
                async with places:
                    answer = await self._one(client, model, prompt)
                told(1)
                return answer

            try:
                return list(await asyncio.gather(*(ask(prompt) for prompt in prompts)))
            except OpenAIError as error:
                raise ConfigError(f"{self._server.base} did not answer a question: {error}") from error

    async def _one(self, client: AsyncOpenAI, model: str, prompt: str) -> Answer:
        done = await client.completions.create(
            model=model, prompt=prompt, temperature=0, max_tokens=self._max_tokens, stop=list(STOPS)
        )
        return answer_of(done.model_dump())


def answer_of(body: dict[str, Any]) -> Answer:
    """The answer that a completion's body holds."""
    choice = body["choices"][0]
    text = choice["text"] or ""
    usage = usage_of(body.get("usage"))
    sources = Sources() if usage is None else Sources(usage.prompt, usage.device, usage.host, usage.disk)
    loaded = bool(sources.host or sources.disk)
    return Answer(text, (text,), choice.get("finish_reason") == "length", sources, loaded)


def failed_of(metrics: str) -> int | None:
    """Admissions whose load failed since the server's start, by the text of `/metrics`; None where it does not count them."""
    counted = (line for line in metrics.splitlines() if line.startswith("stepwell_admissions_total{"))
    found = [line.rsplit(" ", 1)[1] for line in counted if "load_failed(" in line]
    return int(sum(map(float, found))) if found else None
