"""Items of OpenAI's Responses API as messages of a chat. Faults are named by the caller's own fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.talk.contents import kind_of, parts_of, string
from stepwell.talk.history import INPUT, Message

_ROLES = ("user", "assistant", "system", "developer")
_WITHOUT_TEXT = frozenset({"item_reference", "compaction", "web_search_call", "tool_search_call", "mcp_list_tools"})


def chat_messages(value: object) -> list[Message]:
    """Messages of a chat from a text or a list of items. Raises RequestError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise RequestError("input must be a string or a list of items", "input")
    return read_items(value)


def read_items(items: Sequence[object]) -> list[Message]:
    """Messages of a chat. What the model wrote in one go, thought, text and calls, is one message."""
    out: list[Message] = []
    for i, item in enumerate(items):
        field = f"input.{i}"
        if not isinstance(item, dict):
            raise RequestError(f"{field} must be an object such as {{'role': 'user', 'content': '…'}}", field)
        _read_item(item, field, out)
    return out


def flat_name(namespace: object, name: str) -> str:
    """What the model knows a tool by that a caller keeps in a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def _read_item(item: dict[str, Any], field: str, out: list[Message]) -> None:
    kind = item.get("type", "message")
    match kind:
        case "message":
            _read_message(item, field, out)
        case "function_call":
            name = flat_name(item.get("namespace"), string(item, "name", field))
            _add_call(out, string(item, "call_id", field), name, item.get("arguments"))
        case "custom_tool_call":
            _add_call(out, string(item, "call_id", field), string(item, "name", field), {INPUT: item.get("input")})
        case "local_shell_call" | "shell_call" | "apply_patch_call":
            _add_call(out, string(item, "call_id", field), kind.removesuffix("_call"), item.get("action") or {})
        case str() if kind.endswith("_output") and isinstance(item.get("call_id"), str):
            content = _content(item.get("output"), f"{field}.output")
            out.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        case "function_call_output":
            string(item, "call_id", field)
        case "reasoning":
            if thought := _thought(item, field):
                out.append({"role": "assistant", "content": "", "reasoning_content": thought})
        case str() if kind in _WITHOUT_TEXT:
            pass  # what it names lies with a provider
        case str():
            out.append({"role": "assistant", "content": [{**item, "type": kind}]})
        case _:
            raise RequestError(f"{field}.type must be a string such as 'message'", f"{field}.type")


def _read_message(item: dict[str, Any], field: str, out: list[Message]) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise RequestError(f"{field}.role must be 'user', 'assistant', 'system' or 'developer'", f"{field}.role")
    content = _content(item.get("content"), f"{field}.content")
    if (
        role == "assistant"
        and out
        and set(out[-1]) == {"role", "content", "reasoning_content"}
        and not out[-1]["content"]
    ):
        out[-1]["content"] = content
    elif role == "assistant" and out and out[-1].get("tool_calls") and isinstance(content, str):
        _add_behind(out[-1], content)
    else:
        out.append({"role": role, "content": content})


def _add_behind(message: Message, text: str) -> None:
    """Text that the model wrote behind a call."""
    before = message["content"]
    if not isinstance(before, str):
        before.append({"type": "text", "text": text})
        return
    gap = "" if not before or not text or text[0].isspace() else "\n\n"
    message["content"] = before + gap + text


def _content(value: object, field: str) -> Any:
    """Text, or parts of which each is known to be well formed."""
    if isinstance(value, str):
        return value
    parts = [part for part, name in parts_of(value, field) if _is_sound(part, name)]
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "".join(texts) if len(texts) == len(parts) else parts


def _is_sound(part: dict[str, Any], field: str) -> bool:
    if kind_of(part, field) in ("input_text", "output_text", "text"):
        string(part, "text", field)
    return True


def _add_call(out: list[Message], call_id: str, name: str, arguments: object) -> None:
    """To the message that the model wrote it in."""
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": ""})
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    out[-1].setdefault("tool_calls", []).append(call)


def _thought(item: dict[str, Any], field: str) -> str:
    """The thought itself, or where there is none its summary."""
    for name in ("content", "summary"):
        if item.get(name):
            return "".join(string(part, "text", place) for part, place in parts_of(item[name], f"{field}.{name}"))
    return ""
