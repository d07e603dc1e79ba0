"""Whoever answers: a server at a URL, or an engine in this process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import httpx

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.extras import expect_extra
from stepwell.replay.wire import Usage, usage_of
from stepwell.sched.request import SamplingParams

if TYPE_CHECKING:
    from stepwell.engine.llm import LocalEngine

Message: TypeAlias = dict[str, str]

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
_DATA = "data:"
_LONGEST_ERROR = 2000
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters with which a text could command the terminal."""


def harmless(text: str) -> str:
    """The same without characters that a terminal obeys, but for new lines and tabs."""
    return _CONTROLS.sub("", text)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text as it appears; `thought` where it is reasoning, which is not part of the answer."""

    text: str
    thought: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What one answer took: prompt tokens by source, tokens of the answer, seconds until the first of them and in all.

    A server that counts nothing leaves all tokens 0.
    """

    prompt: int
    device: int
    host: int
    disk: int
    generated: int
    first: float
    seconds: float

    @property
    def context(self) -> int:
        """Tokens of the conversation after this answer."""
        return self.prompt + self.generated

    def line(self) -> str:
        return " · ".join(part for part in (self._cached(), f"first after {self.first:.2f} s", self._speed()) if part)

    def _cached(self) -> str:
        tiers = [
            f"{n:,} {name}" for name, n in (("device", self.device), ("host", self.host), ("disk", self.disk)) if n
        ]
        split = f" ({', '.join(tiers)})" if tiers else ""
        cached = self.device + self.host + self.disk
        return f"{cached:,} of {self.prompt:,} prompt tokens cached{split}" if self.prompt else ""

    def _speed(self) -> str:
        rest = self.seconds - self.first
        speed = f" at {(self.generated - 1) / rest:,.0f}/s" if self.generated > 1 and rest > 0 else ""
        return f"{self.generated:,} tokens{speed}" if self.generated else ""


class Talker(Protocol):
    """Whoever answers. `context`: the most tokens of a conversation; None where it is not told."""

    name: str
    context: int | None

    def answer(self, messages: list[Message]) -> Generator[Piece, None, Turn]:
        """The next answer as it appears, then what it took. Closing it ends the call. Raises StepwellError."""


class RemoteTalker:
    """A server of the OpenAI API. Close it when done. Raises ConfigError where none answers at `url`."""

    def __init__(self, url: str, key: str, max_tokens: int | None, temperature: float) -> None:
        headers = {"authorization": f"Bearer {key.split()[0] if key.split() else 'none'}"}
        base = url.rstrip("/").removesuffix("/v1") + "/v1/"
        limit = {} if max_tokens is None else {"max_tokens": max_tokens}
        self._fields: dict[str, Any] = {"temperature": temperature, **limit}
        try:
            self._http = httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT, trust_env=False)
            answer = self._http.get("models")
            if answer.is_error:
                raise StepwellError(_said(answer))
            first = answer.json()["data"][0]
            self.name = harmless(str(first["id"]))
        except (httpx.HTTPError, httpx.InvalidURL, StepwellError) as error:
            raise ConfigError(f"no server answers at {url} ({error}): start one, or give its URL and key") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"what answers at {url} is no server of the OpenAI API: it names no model") from error
        told = first.get("max_model_len")
        self.context = told if isinstance(told, int) and told > 0 else None

    def close(self) -> None:
        self._http.close()

    def answer(self, messages: list[Message]) -> Generator[Piece, None, Turn]:
        body = {"model": self.name, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        began = time.perf_counter()
        first, ended, usage = 0.0, False, None
        try:
            with self._http.stream("POST", "chat/completions", json=body | self._fields) as stream:
                if stream.is_error:
                    stream.read()
                    raise StepwellError(_said(stream))
                for chunk in _events(stream):
                    usage = usage_of(chunk.get("usage")) or usage
                    for choice in chunk.get("choices") or ():
                        ended = ended or choice.get("finish_reason") is not None
                        for piece in _pieces(choice.get("delta") or {}):
                            first = first or time.perf_counter()
                            yield piece
        except httpx.HTTPError as error:
            raise StepwellError(f"the server was lost: {error}") from error
        if usage is None and not ended:
            raise StepwellError("the answer was cut short: see the server's log")
        now = time.perf_counter()
        told = usage or Usage(0, 0, 0, 0, 0, split=False)
        return Turn(told.prompt, told.device, told.host, told.disk, told.answer, (first or now) - began, now - began)


def _events(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed answer. Raises StepwellError for one that says what went wrong."""
    for line in stream.iter_lines():
        text = line.removeprefix(_DATA).strip()
        if not line.startswith(_DATA) or text == "[DONE]":
            continue
        try:
            chunk = json.loads(text)
        except ValueError as error:
            raise StepwellError(f"the server sent what is no JSON: {text[:80]!r}") from error
        if "error" in chunk:
            raise StepwellError(
                harmless(str(chunk["error"].get("message") if isinstance(chunk["error"], dict) else chunk))
            )
        yield chunk


def _pieces(delta: Mapping[str, Any]) -> Iterator[Piece]:
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if thought:
        yield Piece(str(thought), thought=True)
    if delta.get("content"):
        yield Piece(str(delta["content"]))


def _said(answer: httpx.Response) -> str:
    """Status and message of an error."""
    try:
        error = answer.json()["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        text = answer.text
    return f"{answer.status_code}: {harmless(text[:_LONGEST_ERROR])}"


class LocalTalker:
    """An engine in this process."""

    def __init__(self, engine: LocalEngine, max_tokens: int | None, temperature: float) -> None:
        self._engine = engine
        self._params = SamplingParams(max_tokens, temperature, seed=time.time_ns() % 2**63)
        self.name = engine.facts.model
        self.context: int | None = engine.facts.max_model_len

    def answer(self, messages: list[Message]) -> Generator[Piece, None, Turn]:
        began, first = time.perf_counter(), 0.0
        stream = self._engine.stream(self._engine.tokenizer.encode_chat(messages), self._params)
        try:
            while True:
                text = next(stream)
                first = first or time.perf_counter()
                yield Piece(text)
        except StopIteration as end:
            done, now = end.value, time.perf_counter()
        finally:
            stream.close()
        outcome = done.outcome
        tokens = len(done.token_ids)
        return Turn(
            outcome.prompt, outcome.device, outcome.host, outcome.disk, tokens, (first or now) - began, now - began
        )


@contextmanager
def open_talker(
    target: str, key: str, max_tokens: int | None, temperature: float, memory: Mapping[str, str | None]
) -> Iterator[Talker]:
    """Whoever answers at `target`: a URL, or the directory of a checkpoint. Raises ConfigError."""
    if "://" in target:
        remote = RemoteTalker(target, key, max_tokens, temperature)
        try:
            yield remote
        finally:
            remote.close()
        return
    if not Path(target).is_dir():
        raise ConfigError(f"{target!r} is neither a URL nor a directory: give http://HOST:PORT or a checkpoint")
    expect_extra("engine", "stepwell chat DIRECTORY")
    from stepwell.engine.llm import LLM

    with LLM(target, **memory) as engine:
        yield LocalTalker(engine, max_tokens, temperature)
