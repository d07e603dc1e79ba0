"""Messages of Anthropic's API as messages of a chat. Faults are named by the caller's own fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.talk.contents import kind_of, parts_of, string
from stepwell.talk.history import Message, as_object
from stepwell.talk.order import led_by

_BILLING = "x-anthropic-billing-header:"
"""A block of `system` that begins so is meant for Anthropic's accounts and differs from call to call: it would empty the cache."""


def chat_messages(system: object, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation, behind one system message that holds `system` and what the messages themselves begin with. Raises RequestError."""
    return led_by(
        system_text(system), [m for i, given in enumerate(messages) for m in _message(given, f"messages.{i}")]
    )


def system_text(value: object) -> str:
    """The instructions in one string. Raises RequestError."""
    if value is None or isinstance(value, str):
        return value or ""
    texts = []
    for part, field in parts_of(value, "system"):
        if kind_of(part, field) != "text":
            raise RequestError(f"{field} must be of type 'text'", field)
        texts.append(string(part, "text", field))
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _message(message: Mapping[str, Any], field: str) -> list[Message]:
    """One message, which may hold several results of tools, each of which is a message of its own in a chat."""
    content = message.get("content")
    match message.get("role"):
        case "user":
            return _user(content, f"{field}.content")
        case "assistant":
            return [_assistant(content, f"{field}.content")]
        case "system":
            return [{"role": "system", "content": _plain([_checked(*p) for p in _blocks(content, f"{field}.content")])}]
        case _:
            raise RequestError(f"{field}.role must be 'user', 'assistant' or 'system'", f"{field}.role")


def _user(content: object, field: str) -> list[Message]:
    out: list[Message] = []
    for part, name in _blocks(content, field):
        if part.get("type") == "tool_result":
            out.append(_result(part, name))
        elif out and out[-1]["role"] == "user":
            out[-1]["content"].append(_checked(part, name))
        else:
            out.append({"role": "user", "content": [_checked(part, name)]})
    return [{**m, "content": _plain(m["content"])} if m["role"] == "user" else m for m in out]


def _result(part: dict[str, Any], field: str) -> Message:
    content = part.get("content")
    if isinstance(content, list):
        content = _plain([_checked(*inner) for inner in parts_of(content, f"{field}.content")])
    elif content is not None and not isinstance(content, str):
        raise RequestError(f"{field}.content must be a string or a list of blocks", f"{field}.content")
    result: Message = {"role": "tool", "tool_call_id": string(part, "tool_use_id", field), "content": content or ""}
    failed = part.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise RequestError(f"{field}.is_error must be true or false", f"{field}.is_error")
    return result | ({"is_error": True} if failed else {})


def _assistant(content: object, field: str) -> Message:
    said, thought, calls = [], "", []
    for part, name in _blocks(content, field):
        match part.get("type"):
            case "thinking":
                thought += string(part, "thinking", name)
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(part, name))
            case _:
                said.append(_checked(part, name))
    message: Message = {"role": "assistant", "content": _plain(said)}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _call(part: dict[str, Any], field: str) -> dict[str, Any]:
    function = {"name": string(part, "name", field), "arguments": as_object(part.get("input"))}
    return {"id": string(part, "id", field), "type": "function", "function": function}


def _blocks(content: object, field: str) -> list[tuple[dict[str, Any], str]]:
    if content is None or content == []:
        raise RequestError(f"{field} is empty: give a string or at least one block", field)
    return [({"type": "text", "text": content}, field)] if isinstance(content, str) else parts_of(content, field)


def _checked(part: dict[str, Any], field: str) -> dict[str, Any]:
    """A block whose faults, if it had any, are named."""
    if kind_of(part, field) == "text":
        string(part, "text", field)
    return part


def _plain(parts: list[dict[str, Any]]) -> Any:
    """Parts as one string where all of them are text."""
    if all(part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts
