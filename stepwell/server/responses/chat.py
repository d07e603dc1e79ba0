"""A call of the Responses API as the chat that it amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.server.contents import parts_of, string, text_in, text_of
from stepwell.server.hosted import LeftOut
from stepwell.server.instructions import with_instructions
from stepwell.server.responses.schema import Format, Reasoning, ResponsesCall
from stepwell.server.tools import Tool, as_function

NAMES = {"response_format": "text.format", "messages": "input", "max_tokens": "max_output_tokens"}
"""What fields of chats are called here."""

_TEXTS = frozenset({"input_text", "output_text", "text"})
_THOUGHTS = frozenset({"reasoning_text"})
_SUMMARIES = frozenset({"summary_text"})
_REFUSED = ("background", "conversation", "prompt", "top_logprobs")
_SCORES = "message.output_text.logprobs"


def chat_fields(
    call: ResponsesCall, earlier: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]], left_out: LeftOut
) -> dict[str, Any]:
    """The fields of the chat whose messages are `earlier` and then `added`. Raises RequestError naming the caller's own field."""
    _refuse(call)
    messages = with_instructions(call.instructions or "", [*earlier, *added])
    if not messages:
        raise RequestError("input is empty: give a text or at least one item", "input")
    tools = _tools(call.tools or [], left_out)
    return {
        "messages": messages,
        "tools": tools or None,
        "tool_choice": _choice(call.tool_choice, tools),
        "parallel_tool_calls": call.parallel_tool_calls,
        "response_format": _format(None if call.text is None else call.text.format),
        "chat_template_kwargs": {**_thinking(call.reasoning), **(call.chat_template_kwargs or {})} or None,
        "max_tokens": call.max_output_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "stream": call.stream,
    }


def read_input(value: object) -> list[dict[str, Any]]:
    """Messages of a chat from a text or a list of items. Raises RequestError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise RequestError("input must be a string or a list of items", "input")
    return read_items(value)


def read_items(items: Sequence[object]) -> list[dict[str, Any]]:
    """Messages of a chat. What the model wrote in one go, thought, text and calls, is one message."""
    out: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        field = f"input.{i}"
        if not isinstance(item, dict):
            raise RequestError(f"{field} must be an object such as {{'role': 'user', 'content': '…'}}", field)
        _read_item(item, field, out)
    return out


def _read_item(item: dict[str, Any], field: str, out: list[dict[str, Any]]) -> None:
    kind = item.get("type", "message")
    match kind:
        case "message":
            _read_message(item, field, out)
        case "function_call":
            function = {"name": string(item, "name", field), "arguments": string(item, "arguments", field)}
            call = {"id": string(item, "call_id", field), "type": "function", "function": function}
            _answer(out).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            text = text_of(item.get("output"), f"{field}.output", _TEXTS)
            out.append({"role": "tool", "tool_call_id": string(item, "call_id", field), "content": text})
        case "reasoning":
            if thought := _thought(item, field):
                out.append({"role": "assistant", "content": "", "reasoning_content": thought})
        case _:
            message = f"{field} is of type {str(kind)[:40]!r}: only messages, function calls with their outputs and reasoning are known"
            raise RequestError(message, f"{field}.type")


def _read_message(item: dict[str, Any], field: str, out: list[dict[str, Any]]) -> None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise RequestError(f"{field}.role must be 'user', 'assistant', 'system' or 'developer'", f"{field}.role")
    content = text_of(item.get("content"), f"{field}.content", _TEXTS)
    if (
        role == "assistant"
        and out
        and set(out[-1]) == {"role", "content", "reasoning_content"}
        and not out[-1]["content"]
    ):
        out[-1]["content"] = content
    else:
        out.append({"role": role, "content": content})


def _answer(out: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a call belongs to."""
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": ""})
    return out[-1]


def _thought(item: dict[str, Any], field: str) -> str:
    """The thought itself, or where there is none its summary."""
    for name, kinds in (("content", _THOUGHTS), ("summary", _SUMMARIES)):
        if item.get(name):
            parts = parts_of(item[name], f"{field}.{name}")
            return "".join(text_in(part, place, kinds) for part, place in parts)
    return ""


def _thinking(reasoning: Reasoning | None) -> dict[str, Any]:
    """As templates of models that may think know it; where nothing is asked, the template decides."""
    if reasoning is None or reasoning.effort is None:
        return {}
    return {"enable_thinking": reasoning.effort != "none", "reasoning_effort": reasoning.effort}


def _format(given: Format | None) -> dict[str, Any] | None:
    if given is None or given.type != "json_schema":
        return None if given is None else {"type": given.type}
    if given.json_schema is None:
        raise RequestError("text.format.schema is missing", "text.format.schema")
    return {"type": "json_schema", "json_schema": {"name": given.name or "answer", "schema": given.json_schema}}


def _tools(tools: Sequence[Mapping[str, Any]], left_out: LeftOut) -> list[Tool]:
    shown = []
    for i, tool in enumerate(tools):
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise RequestError(f"tools.{i}.type must be 'function'", f"tools.{i}.type")
        if kind == "function":
            shown.append(as_function(tool, f"tools.{i}"))
        else:
            left_out.note(kind)
    return shown


def _choice(choice: object, tools: Sequence[Tool]) -> object:
    if choice is None or isinstance(choice, str):
        return choice
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise RequestError(
            "tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'name': one of the tools'}",
            "tool_choice",
        )
    if choice.get("name") not in [tool["function"]["name"] for tool in tools]:
        raise RequestError("tool_choice.name must be the name of one of the tools", "tool_choice.name")
    return {"type": "function", "function": {"name": choice["name"]}}


def _refuse(call: ResponsesCall) -> None:
    """Refuse what would change the answer and cannot be done."""
    for name in _REFUSED:
        if (call.model_extra or {}).get(name):
            raise RequestError(f"{name} is not supported: leave it out", name)
    if _SCORES in (call.include or ()):
        raise RequestError(f"include holds {_SCORES!r}: log-probabilities are given by /v1/chat/completions", "include")
