"""Prompts and messages as callers write them, turned into tokens and checked before anything is reserved for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from stepwell.base.errors import RequestError
from stepwell.base.geometry import Ints
from stepwell.engine.config import EngineFacts
from stepwell.engine.tokenizer import Tokenizer
from stepwell.server.contents import text_of
from stepwell.server.dialect import Dialect
from stepwell.server.read.reply import Start
from stepwell.server.schema import ChatCall, TokenizeCall
from stepwell.server.tools import Tool, read_earlier_calls, read_tools

MAX_PROMPTS = 1024
_Result = TypeVar("_Result")
_ROLES = {"developer": "system"}  # the newer name; templates know the older one
_SHORT = 2000  # characters, or ids, that are read at once instead of in a thread
_LONG = _SHORT + 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be continued: int32 [n], the text that it was made of (None: it came as ids), and how the answer begins."""

    ids: Ints
    text: str | None = None
    start: Start = Start.SPEAKING


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Knows the model's vocabulary, context and template; checks prompts against them."""

    tokenizer: Tokenizer
    facts: EngineFacts
    dialect: Dialect

    async def completion(self, value: object, special: bool = True) -> list[Prompt]:
        """Prompts of a completion: text, token ids, or a list of either. Raises RequestError.

        special  texts get the model's own leading or closing tokens
        """
        items = _split(value)
        return await beside(sum(map(len, items)), lambda: [self._read(item, special) for item in items])

    async def chat(self, call: ChatCall, tools: Sequence[Tool]) -> Prompt:
        """The prompt of a conversation. Raises RequestError."""
        prompt = await self._conversation(call, call.messages, tools)
        self._check_length(prompt.ids, "messages")
        return prompt

    async def tokenize(self, call: TokenizeCall) -> Ints:
        """What a prompt or a conversation would become, of any length. Raises RequestError."""
        if call.messages is not None:
            return (await self._conversation(call, call.messages, read_tools(call.tools))).ids
        text = call.prompt or ""
        return await beside(len(text), lambda: self.tokenizer.encode(text, special=call.add_special_tokens))

    async def _conversation(
        self, call: ChatCall | TokenizeCall, given: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
    ) -> Prompt:
        messages = [_message(i, message) for i, message in enumerate(given)]
        if not messages:
            raise RequestError("messages is empty: give at least one message", "messages")
        if tools and not self.dialect.knows_tools:
            raise RequestError("this model's chat template knows no tools: leave them out", "tools")
        size = sum(map(_size, messages)) + _LONG * len(tools)
        return await beside(size, lambda: self._render(call, messages, tools))

    def _render(
        self, call: ChatCall | TokenizeCall, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
    ) -> Prompt:
        continued = call.continue_final_message
        text = self.tokenizer.render(
            messages,
            open_answer=call.add_generation_prompt and not continued,
            continue_last=continued,
            variables=call.chat_template_kwargs,
            tools=tools,
        )
        return Prompt(self.tokenizer.encode(text, special=False), text, self.dialect.start(text, continued))

    def ids(self, value: Sequence[object], field: str) -> Ints:
        """Token ids of this vocabulary as int32. Raises RequestError."""
        if not {type(i) for i in value} <= {int}:
            wrong = next(i for i in value if type(i) is not int)
            raise RequestError(f"{field} must hold integers only, not {str(wrong)[:40]!r}", field)
        for i in (min(value, default=0), max(value, default=0)):  # type: ignore[type-var]
            if not 0 <= i < self.facts.vocab_size:  # type: ignore[operator]
                raise RequestError(f"token id {i} in {field} is outside 0 … {self.facts.vocab_size - 1}", field)
        return np.array(value, dtype=np.int32)

    def _read(self, item: str | list[object], special: bool) -> Prompt:
        text = item if isinstance(item, str) else None
        ids = self.ids(item, "prompt") if isinstance(item, list) else self.tokenizer.encode(item, special)
        self._check_length(ids, "prompt")
        return Prompt(ids, text)

    def _check_length(self, ids: Ints, field: str) -> None:
        limit = self.facts.max_model_len - 1
        if len(ids) == 0:
            raise RequestError(f"{field} is empty: give at least one token", field)
        if len(ids) > limit:
            raise RequestError(
                f"{field} has {len(ids):,} tokens; at most {limit:,} leave room for an answer "
                f"in a context of {self.facts.max_model_len:,}",
                field,
            )


def _split(value: object) -> list[str | list[object]]:
    """One prompt or many, as a list of texts and lists of ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise RequestError(
            f"prompt must be a string, token ids or a list of either, not {type(value).__name__}", "prompt"
        )
    if not value:
        raise RequestError("prompt is empty: give at least one token", "prompt")
    if not any(isinstance(item, str | list) for item in value):
        return [value]
    if not all(isinstance(item, str | list) for item in value):
        raise RequestError("prompt mixes prompts and token ids: give a list of strings or lists of ids", "prompt")
    if len(value) > MAX_PROMPTS:
        raise RequestError(f"prompt holds {len(value):,} prompts: send at most {MAX_PROMPTS:,} at once", "prompt")
    return value


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it: content in one string, arguments of calls as objects, thoughts in `reasoning_content`."""
    field = f"messages.{index}"
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{field}.role must be a string such as 'user'", f"{field}.role")
    for name in ("function_call", "audio"):
        if message.get(name):
            raise RequestError(f"{field}.{name} is not supported: leave it out", f"{field}.{name}")
    content = message.get("content")
    if content is None and role != "assistant":
        raise RequestError(f"{field}.content is missing", f"{field}.content")
    read = {
        **message,
        "role": _ROLES.get(role, role),
        "content": "" if content is None else text_of(content, f"{field}.content"),
    }
    if message.get("tool_calls"):
        read["tool_calls"] = read_earlier_calls(message["tool_calls"], f"{field}.tool_calls")
    else:
        read.pop("tool_calls", None)
    thought = message.get("reasoning_content", message.get("reasoning"))
    if isinstance(thought, str):
        read["reasoning_content"] = thought
    return read


def _size(message: Mapping[str, Any]) -> int:
    """About how long a message is that has been read. Arguments of calls are not measured but taken to be long."""
    thought = message.get("reasoning_content")
    return (
        len(message["content"]) + len(thought if isinstance(thought, str) else "") + _LONG * ("tool_calls" in message)
    )


async def beside(size: int, work: Callable[[], _Result]) -> _Result:
    """Run `work`, in a thread where it may take long, so that streams keep flowing."""
    return work() if size <= _SHORT else await asyncio.to_thread(work)
