"""Calls of tools and their results in earlier messages, so that a template can render whatever comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.talk.strict import JsonCopy, copied

INPUT = "input"
"""The argument that holds what is no JSON object."""
_NO_RESULT = "[no result]"

Message = dict[str, Any]


def earlier_calls(message: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """The calls of an earlier message, arguments as objects, which is what templates write. Raises RequestError."""
    value = message.get("tool_calls")
    if value and not isinstance(value, list):
        raise RequestError(f"{field}.tool_calls must be a list", f"{field}.tool_calls")
    calls = [_call(call, f"{field}.tool_calls.{i}") for i, call in enumerate(value or ())]
    if isinstance(message.get("function_call"), dict):  # as they were written before there were several
        calls.append(_call({"function": message["function_call"]}, f"{field}.function_call"))
    return calls


def _call(call: object, field: str) -> dict[str, Any]:
    inner = call.get("function", call.get("custom")) if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise RequestError(f"{field} must be {{'function': {{'name': …, 'arguments': …}}}}", field)
    given = inner.get("arguments", inner.get("input"))
    function = {**inner, "arguments": as_object(given)}
    return {**call, "type": "function", "function": function}


def as_object(value: object) -> dict[str, Any]:
    """Arguments as an object, whatever was given: of broken JSON what there is of it, of anything else the whole of it as `input`."""
    if isinstance(value, dict):
        return value
    if value is None or value == "":
        return {}
    if not isinstance(value, str):
        return {INPUT: value}
    written = copied(value)
    found = json.loads(written) if written is not None else _begun(value)
    return found if isinstance(found, dict) else {INPUT: value}


def _begun(text: str) -> object:
    """The object that `text` is the beginning of; None where it is none, or nothing of it has come."""
    copy = JsonCopy()
    out = copy.push(text)
    if not out.startswith("{") or copy.broken or copy.done:
        return None
    return json.loads(out + copy.rescue()) or None


def in_order(messages: Sequence[Message]) -> list[Message]:
    """The same messages, results of tools in the order of their calls.

    Templates tell results apart by their places alone. A call that has no result while a later one has gets a line that says so.
    """
    out: list[Message] = []
    i = 0
    while i < len(messages):
        out.append(messages[i])
        ids = [_name(call.get("id")) for call in messages[i].get("tool_calls") or ()]
        i += 1
        end = i
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        out += _sorted(ids, messages[i:end]) if ids else messages[i:end]
        i = end
    return out


def _name(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _sorted(ids: Sequence[str | None], results: Sequence[Message]) -> Sequence[Message]:
    given = [_name(result.get("tool_call_id")) for result in results]
    if len(set(given)) < len(given) or not set(given) & set(ids) or None in given:
        return results
    by_id = dict(zip(given, results, strict=True))
    last = max(i for i, name in enumerate(ids) if name in by_id)
    known = [by_id.pop(name, {"role": "tool", "tool_call_id": name, "content": _NO_RESULT}) for name in ids[: last + 1]]
    return [*known, *by_id.values()]
