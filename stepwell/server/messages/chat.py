"""A call of the Messages API as the chat that it amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.server.messages.schema import Choice, CountCall, MessagesCall
from stepwell.server.read.hosted import LeftOut
from stepwell.server.read.tools import Tool, as_function
from stepwell.talk.blocks import chat_messages

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_fields(call: CountCall, left_out: LeftOut) -> dict[str, Any]:
    """The fields of the chat. Raises RequestError naming the caller's own field."""
    if not call.messages:
        raise RequestError("messages is empty: give at least one message", "messages")
    messages = chat_messages(call.system, call.messages)
    tools = _tools(call.tools or [], left_out)
    fields: dict[str, Any] = {
        "messages": messages,
        "tools": tools or None,
        "chat_template_kwargs": {**_thinking(call), **(call.chat_template_kwargs or {})},
        "continue_final_message": bool(messages) and _continues(messages[-1]),
    }
    if call.tool_choice is not None:
        fields |= _choice(call.tool_choice, tools)
    if call.output_config is not None and call.output_config.effort is not None:
        fields["reasoning_effort"] = call.output_config.effort
    if call.output_config is not None and call.output_config.format is not None:
        schema = {"name": "answer", "schema": call.output_config.format.json_schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields | (_sampling(call) if isinstance(call, MessagesCall) else {})


def _sampling(call: MessagesCall) -> dict[str, Any]:
    fields = {
        "max_tokens": max(call.max_tokens, 1),
        "temperature": call.temperature,
        "top_p": call.top_p,
        "top_k": call.top_k,
        "stream": call.stream,
    }
    return fields | ({"stop": call.stop_sequences} if call.stop_sequences is not None else {})


def _thinking(call: CountCall) -> dict[str, Any]:
    """Template variables for thinking. In this API, a model thinks only if the caller asks for it."""
    return {"enable_thinking": call.thinking is not None and call.thinking.type != "disabled"}


def _continues(last: Mapping[str, Any]) -> bool:
    """Whether the answer goes on with the last message."""
    return last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def _tools(tools: Sequence[Mapping[str, Any]], left_out: LeftOut) -> list[Tool]:
    shown = []
    for i, tool in enumerate(tools):
        kind = tool.get("type")
        if kind not in (None, "custom") and "input_schema" not in tool:
            left_out.note(str(kind))
            continue
        if not isinstance(tool.get("input_schema"), dict):
            raise RequestError(f"tools.{i}.input_schema must be a JSON schema", f"tools.{i}.input_schema")
        shown.append(as_function(tool, f"tools.{i}", "input_schema"))
    return shown


def _choice(choice: Choice, tools: Sequence[Tool]) -> dict[str, Any]:
    several = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type != "tool":
        return {"tool_choice": _CHOICES[choice.type], **several}
    if choice.name not in [tool["function"]["name"] for tool in tools]:
        raise RequestError("tool_choice.name must be the name of one of the tools", "tool_choice.name")
    return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **several}
