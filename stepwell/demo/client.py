"""One question to the server through the `openai` client, with the time to its first token."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.base.errors import StepwellError

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionChunk

_COLD = {"read_cache": False, "write_cache": False}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `device`, `host` and `disk` are the prompt tokens served from each tier; `ttft` is in seconds."""

    text: str
    finish: str
    ttft: float
    prompt: int
    device: int
    host: int
    disk: int
    generated: int

    @property
    def cached(self) -> int:
        """Prompt tokens that were not recomputed."""
        return self.device + self.host + self.disk

    @property
    def recomputed(self) -> int:
        """Prompt tokens that were."""
        return self.prompt - self.cached

    def says_the_same(self, other: Answer) -> bool:
        """Same text, same length, same end."""
        return (self.text, self.generated, self.finish) == (other.text, other.generated, other.finish)


def connect(base_url: str) -> OpenAI:
    """A client of the server at `base_url`: past any proxy, since the server is near, and without retries."""
    from openai import DefaultHttpxClient, OpenAI

    http = DefaultHttpxClient(trust_env=False, timeout=120.0)
    return OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0, http_client=http)


def ask(client: OpenAI, model: str, messages: list[dict[str, str]], *, cold: bool, max_tokens: int = 24) -> Answer:
    """Continue the conversation greedily. `cold` neither reads nor writes the prompt cache."""
    typed: Any = messages  # the client's message types are a union of ten typed dicts
    started = time.perf_counter()
    stream = client.chat.completions.create(
        model=model,
        messages=typed,
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=_COLD if cold else None,
    )
    return read_answer(stream, started)


def call(client: OpenAI, model: str, question: str, tools: list[dict[str, Any]]) -> str:
    """What the model answers where it may use `tools`: its call, or else its text."""
    typed: Any = {"messages": [{"role": "user", "content": question}], "tools": tools}
    done = client.chat.completions.create(model=model, temperature=0, max_tokens=96, **typed)
    message = done.choices[0].message
    calls = [f"{c.function.name}({c.function.arguments})" for c in message.tool_calls or () if c.type == "function"]
    return " ".join(calls) or (message.content or "")


def read_answer(stream: Iterable[ChatCompletionChunk], started: float) -> Answer:
    """Collect a stream asked for at `started` (time.perf_counter). Raises StepwellError where it was cut short."""
    parts: list[str] = []
    finish, first, usage = "", 0.0, None
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.perf_counter()
                parts.append(choice.delta.content)
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    if usage is None or usage.prompt_tokens_details is None:
        raise StepwellError("the answer ended without its usage: see the server's log")
    details = usage.prompt_tokens_details.model_dump()
    return Answer(
        text="".join(parts),
        finish=finish,
        ttft=(first or time.perf_counter()) - started,
        prompt=usage.prompt_tokens,
        device=details["device_tokens"],
        host=details["host_tokens"],
        disk=details["disk_tokens"],
        generated=usage.completion_tokens,
    )
