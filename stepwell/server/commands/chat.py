"""`stepwell chat`: a conversation in the terminal, with what the cache did after each turn.

/new starts afresh, /system TEXT does so with instructions, /quit or Ctrl-D ends; Ctrl-C stops an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rich.console import Console
from rich.markup import escape

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.sched.request import SamplingParams

if TYPE_CHECKING:
    from openai import OpenAI

    from stepwell.engine.llm import LocalEngine

Message: TypeAlias = dict[str, str]
Read: TypeAlias = Callable[[str], str]

_COMMANDS = "/new starts afresh · /system TEXT starts afresh with instructions · /quit ends"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text as it appears; `thought` where it is reasoning, which is not part of the answer."""

    text: str
    thought: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What one answer took: prompt tokens by source, tokens of the answer, seconds until the first of them and in all."""

    prompt: int
    device: int
    host: int
    disk: int
    generated: int
    first: float
    seconds: float

    def line(self) -> str:
        tiers = [
            f"{n:,} {name}" for name, n in (("device", self.device), ("host", self.host), ("disk", self.disk)) if n
        ]
        cached = f"{self.device + self.host + self.disk:,} of {self.prompt:,} prompt tokens cached"
        rest = self.seconds - self.first
        speed = f" at {(self.generated - 1) / rest:,.0f}/s" if self.generated > 1 and rest > 0 else ""
        split = f" ({', '.join(tiers)})" if tiers else ""
        return f"{cached}{split} · first after {self.first:.2f} s · {self.generated:,} tokens{speed}"


class Talker(Protocol):
    """Whoever answers."""

    name: str

    def answer(self, messages: list[Message]) -> Generator[Piece, None, Turn]:
        """The next answer as it appears, then what it took. Raises StepwellError."""


class RemoteTalker:
    """A server."""

    def __init__(self, url: str, key: str, max_tokens: int | None, temperature: float) -> None:
        from openai import DefaultHttpxClient, OpenAI, OpenAIError

        http = DefaultHttpxClient(trust_env=False, timeout=600.0)
        base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._client: OpenAI = OpenAI(
            base_url=base, api_key=key.split()[0] if key.split() else "none", max_retries=0, http_client=http
        )
        self._fields: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        try:
            self.name = self._client.models.list().data[0].id
        except OpenAIError as error:
            raise ConfigError(f"no server answers at {url} ({error}): start one, or give its URL and key") from error

    def answer(self, messages: list[Message]) -> Generator[Piece, None, Turn]:
        from openai import OpenAIError

        try:
            return (yield from self._answer(messages))
        except OpenAIError as error:
            raise StepwellError(str(error)) from error

    def _answer(self, messages: list[Message]) -> Generator[Piece, None, Turn]:
        began = time.perf_counter()
        first, usage = 0.0, None
        typed: Any = messages
        with self._client.chat.completions.create(
            model=self.name, messages=typed, stream=True, stream_options={"include_usage": True}, **self._fields
        ) as stream:
            for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    thought = (choice.delta.model_extra or {}).get("reasoning_content")
                    if thought or choice.delta.content:
                        first = first or time.perf_counter()
                        yield Piece(thought or choice.delta.content or "", bool(thought))
        if usage is None:
            raise StepwellError("the answer was cut short: see the server's log")
        now = time.perf_counter()
        details = usage.prompt_tokens_details.model_dump() if usage.prompt_tokens_details is not None else {}
        device, host, disk = (details.get(f"{tier}_tokens") or 0 for tier in ("device", "host", "disk"))
        return Turn(
            usage.prompt_tokens, device, host, disk, usage.completion_tokens, (first or now) - began, now - began
        )


class LocalTalker:
    """An engine in this process."""

    def __init__(self, engine: LocalEngine, max_tokens: int | None, temperature: float) -> None:
        self._engine = engine
        self._params = SamplingParams(max_tokens, temperature, seed=time.time_ns() % 2**63)
        self.name = engine.facts.model

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
        yield RemoteTalker(target, key, max_tokens, temperature)
        return
    if not Path(target).is_dir():
        raise ConfigError(f"{target!r} is neither a URL nor a directory: give http://HOST:PORT or a checkpoint")
    from stepwell.engine.llm import LLM

    with LLM(target, **memory) as engine:
        yield LocalTalker(engine, max_tokens, temperature)


def chat(talker: Talker, console: Console, read: Read, system: str = "") -> None:
    """Talk until the user has had enough."""
    console.print(f"[bold]{escape(talker.name)}[/]  [dim]{_COMMANDS}[/]", highlight=False)
    messages = _opening(system)
    while (said := _read(read)) is not None:
        word, _, rest = said.partition(" ")
        match word:
            case "":
                continue
            case "/quit":
                return
            case "/new" | "/system":
                system = rest.strip() if word == "/system" else system
                messages = _opening(system)
                console.print("[dim]a new conversation[/]")
            case _ if said.startswith("/"):
                console.print(f"[dim]{_COMMANDS}[/]", highlight=False)
            case _:
                messages = _turn(talker, console, [*messages, {"role": "user", "content": said}])


def _turn(talker: Talker, console: Console, messages: list[Message]) -> list[Message]:
    """One answer, shown as it comes; the conversation after it. A question without an answer is taken back."""
    shown: list[str] = []
    pieces = talker.answer(messages)
    try:
        while True:
            piece = next(pieces)
            console.print(
                escape(piece.text), end="", style="dim" if piece.thought else None, highlight=False, soft_wrap=True
            )
            shown += [] if piece.thought else [piece.text]
    except StopIteration as end:
        note = end.value.line()
    except KeyboardInterrupt:
        note = "stopped"
    except StepwellError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return messages[:-1]
    finally:
        pieces.close()
    console.print(f"\n[dim]{escape(note)}[/]", highlight=False, soft_wrap=True)
    return [*messages, {"role": "assistant", "content": "".join(shown)}]


def _opening(system: str) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []


def _read(read: Read) -> str | None:
    """What the user says next; None at the end."""
    try:
        return read("> ").strip()
    except (EOFError, KeyboardInterrupt):
        return None
