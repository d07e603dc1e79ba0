"""One request to a server of one of three APIs and what it says of it, through the `openai` client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Ints
from stepwell.replay.dialects import Dialect, dialect_of
from stepwell.replay.lanes import TraceRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_TIERS = ("device_tokens", "host_tokens", "disk_tokens")


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send, and how. `url` with or without `/v1`; `model` None: the first that it names; `timeout` in s."""

    url: str
    model: str | None = None
    api_key: str = "none"
    ignore_eos: bool = True
    timeout: float = 600.0

    @property
    def base(self) -> str:
        """The URL without `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them. `split`: the cached ones are told by tier, else they stand under `device`."""

    prompt: int
    answer: int
    device: int
    host: int
    disk: int
    split: bool

    @property
    def recomputed(self) -> int:
        return self.prompt - self.device - self.host - self.disk


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[AsyncOpenAI]:
    """A client without retries and past any proxy. Needs `openai`, which the extra `client` brings."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    http = DefaultAsyncHttpxClient(trust_env=False, timeout=server.timeout)
    async with AsyncOpenAI(
        base_url=f"{server.base}/v1", api_key=server.api_key, max_retries=0, http_client=http, timeout=server.timeout
    ) as client:
        yield client


async def first_model(client: AsyncOpenAI, server: Server) -> str:
    """The model to ask for. Raises ConfigError where the server cannot be reached or names none."""
    from openai import OpenAIError

    if server.model is not None:
        return server.model
    try:
        names = [model.id async for model in await client.models.list()]
    except OpenAIError as error:
        raise ConfigError(
            f"cannot ask {server.base}/v1/models: {error}; is the server up, and is this its URL?"
        ) from error
    if not names:
        raise ConfigError(f"{server.base} names no model: give --model")
    return names[0]


def call_of(request: TraceRequest, prompt: Ints, model: str, server: Server) -> tuple[Dialect, dict[str, Any]]:
    """API and body of a request: as it was logged where the trace holds that, else its tokens."""
    if request.turn.body is not None:
        body: dict[str, Any] = json.loads(request.turn.body)
        dialect = dialect_of(body) or Dialect.COMPLETIONS
    else:
        body, dialect = {"prompt": prompt.tolist(), "temperature": 0}, Dialect.COMPLETIONS
    limit = next((name for name in dialect.limits if name in body), dialect.limits[-1])
    body |= {"model": model, "stream": True, limit: request.output}
    if dialect in (Dialect.COMPLETIONS, Dialect.CHATS):
        body["stream_options"] = {"include_usage": True}
    if server.ignore_eos:
        body["ignore_eos"] = True
    return dialect, body


async def events(client: AsyncOpenAI, dialect: Dialect, body: dict[str, Any], session: str) -> AsyncIterator[Any]:
    """The events of a streamed answer, as JSON. Raises OpenAIError."""
    from openai import AsyncStream

    headers = {"x-session-id": session}
    stream = await client.post(
        dialect.value,
        cast_to=object,
        body=body,
        options={"headers": headers},
        stream=True,
        stream_cls=AsyncStream[object],
    )
    async for event in stream:
        yield event


def usage_of(fields: Mapping[str, Any] | None) -> Usage | None:
    """What a `usage` of a chat says; None where there is none."""
    if fields is None:
        return None
    details: dict[str, Any] = fields.get("prompt_tokens_details") or {}
    tiers = [int(details[name]) for name in _TIERS if type(details.get(name)) is int]
    split = len(tiers) == len(_TIERS)
    device, host, disk = tiers if split else (int(details.get("cached_tokens") or 0), 0, 0)
    return Usage(fields["prompt_tokens"], fields["completion_tokens"], device, host, disk, split)
