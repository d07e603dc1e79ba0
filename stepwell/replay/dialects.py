"""Captured bodies of three APIs as one kind of conversation, read by the code that serves them; and what a server streams back in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from stepwell.base.errors import ConfigError, RequestError
from stepwell.replay.records import Record
from stepwell.talk import blocks, items
from stepwell.talk.history import Message
from stepwell.talk.order import led_by

_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
_OF_MESSAGES = frozenset({"system", "stop_sequences", "thinking", "anthropic_version", "anthropic_beta"})


class Dialect(Enum):
    """Which API a body is for. The value is its path behind `/v1`."""

    COMPLETIONS = "/completions"
    CHATS = "/chat/completions"
    MESSAGES = "/messages"
    RESPONSES = "/responses"

    @property
    def limits(self) -> tuple[str, ...]:
        """Fields that bound the answer, the one that decides first."""
        match self:
            case Dialect.RESPONSES:
                return ("max_output_tokens",)
            case Dialect.CHATS:
                return ("max_completion_tokens", "max_tokens")
            case _:
                return ("max_tokens",)


def dialect_of(body: Mapping[str, Any]) -> Dialect | None:
    """Told by its fields; None for no body of these. One that might be of either API that has `messages` reads the same in both."""
    if "input" in body:
        return Dialect.RESPONSES
    if "messages" in body:
        return Dialect.MESSAGES if _is_messages(body) else Dialect.CHATS
    return Dialect.COMPLETIONS if "prompt" in body else None


def conversation_of(body: Record) -> list[Message]:
    """The messages of a chat that this body amounts to. Raises ConfigError, which names the field."""
    fields = body.fields
    try:
        match dialect_of(fields):
            case Dialect.MESSAGES:
                given = [message.fields for message in body.records("messages", "message")]
                return blocks.chat_messages(fields.get("system"), given)
            case Dialect.RESPONSES:
                if fields.get("previous_response_id"):
                    raise body.fail("previous_response_id", "left out: what it stands for is not in this file")
                return led_by(fields.get("instructions") or "", items.chat_messages(fields["input"]))
            case _:
                return [message.fields for message in body.records("messages", "message")]
    except RequestError as error:
        raise ConfigError(f"{body.where}: {error}") from error


def speaks(dialect: Dialect, event: Mapping[str, Any]) -> bool:
    """Whether an event of a stream carries a part of the answer."""
    kind = str(event.get("type", ""))
    match dialect:
        case Dialect.MESSAGES:
            return kind == "content_block_delta"
        case Dialect.RESPONSES:
            return kind.endswith(".delta")
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls")):
            return True
    return False


def usage_in(dialect: Dialect, event: Mapping[str, Any]) -> dict[str, Any] | None:
    """The usage that an event tells, in the words of chats; None where it tells none."""
    told = event.get("response") or {} if dialect is Dialect.RESPONSES else event
    usage = told.get("usage")
    if not usage or (dialect is Dialect.MESSAGES and event.get("type") != "message_delta"):
        return None
    match dialect:
        case Dialect.MESSAGES:
            cached = usage.get("cache_read_input_tokens") or 0
            prompt = (usage.get("input_tokens") or 0) + cached + (usage.get("cache_creation_input_tokens") or 0)
            details: Any = {"cached_tokens": cached}
        case Dialect.RESPONSES:
            prompt, details = usage["input_tokens"], usage.get("input_tokens_details")
        case _:
            return dict(usage)
    return {"prompt_tokens": prompt, "completion_tokens": usage["output_tokens"], "prompt_tokens_details": details}


def _is_messages(body: Mapping[str, Any]) -> bool:
    if _OF_MESSAGES & body.keys() or any(_names(body.get("tools"), "input_schema")):
        return True
    contents = (message.get("content") for message in _objects(body.get("messages")))
    return any(part.get("type") in _BLOCKS for content in contents for part in _objects(content))


def _names(value: object, field: str) -> Sequence[bool]:
    return [field in one for one in _objects(value)]


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
