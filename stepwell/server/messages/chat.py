"""A call of the Messages API as the chat that it amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.server.contents import parts_of, string, text_in, text_of
from stepwell.server.hosted import LeftOut
from stepwell.server.instructions import with_instructions
from stepwell.server.messages.schema import Choice, CountCall, MessagesCall
from stepwell.server.tools import Tool, as_function

_BILLING = "x-anthropic-billing-header:"
"""A block of `system` that begins so is meant for Anthropic's accounts and differs from call to call: it would empty the cache."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_fields(call: CountCall, left_out: LeftOut) -> dict[str, Any]:
    """The fields of the chat. Raises RequestError naming the caller's own field."""
    messages = [message for i, given in enumerate(call.messages) for message in _messages(given, f"messages.{i}")]
    if not messages:
        raise RequestError("messages is empty: give at least one message", "messages")
    tools = _tools(call.tools or [], left_out)
    fields: dict[str, Any] = {
        "messages": with_instructions(_system(call.system), messages),
        "tools": tools or None,
        "chat_template_kwargs": {**_thinking(call), **(call.chat_template_kwargs or {})},
        "continue_final_message": _continues(messages[-1]),
    }
    if call.tool_choice is not None:
        fields |= _choice(call.tool_choice, tools)
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


def _system(value: object) -> str:
    """The instructions in one string."""
    if value is None or isinstance(value, str):
        return value or ""
    parts = parts_of(value, "system")
    texts = [text_in(part, field) for part, field in parts]
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _thinking(call: CountCall) -> dict[str, Any]:
    """As templates of models that may think know it. In this API nobody thinks who was not asked to."""
    return {"enable_thinking": call.thinking is not None and call.thinking.type != "disabled"}


def _continues(last: Mapping[str, Any]) -> bool:
    """Whether the answer goes on with the last message."""
    return last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def _messages(message: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """One message, which may hold several results of tools, each of which is a message of its own in a chat."""
    content = message.get("content")
    match message.get("role"):
        case "user":
            return _user(content, f"{field}.content")
        case "assistant":
            return [_assistant(content, f"{field}.content")]
        case "system":
            return [{"role": "system", "content": text_of(content, f"{field}.content")}]
        case _:
            raise RequestError(f"{field}.role must be 'user' or 'assistant'", f"{field}.role")


def _user(content: object, field: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    out: list[dict[str, Any]] = []
    for part, name in _blocks(content, field):
        if part.get("type") == "tool_result":
            out.append(_result(part, name))
            continue
        text = text_in(part, name)
        if out and out[-1]["role"] == "user":
            out[-1]["content"] += text
        else:
            out.append({"role": "user", "content": text})
    return out


def _result(part: dict[str, Any], field: str) -> dict[str, Any]:
    content = part.get("content")
    text = "" if content is None else text_of(content, f"{field}.content")
    result: dict[str, Any] = {"role": "tool", "tool_call_id": string(part, "tool_use_id", field), "content": text}
    failed = part.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise RequestError(f"{field}.is_error must be true or false", f"{field}.is_error")
    return result | ({"is_error": True} if failed else {})


def _assistant(content: object, field: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    said, thought, calls = "", "", []
    for part, name in _blocks(content, field):
        match part.get("type"):
            case "thinking":
                thought += string(part, "thinking", name)
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(part, name))
            case _:
                said += text_in(part, name)
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _call(part: dict[str, Any], field: str) -> dict[str, Any]:
    arguments = part.get("input")
    if not isinstance(arguments, dict):
        raise RequestError(f"{field}.input must be an object", f"{field}.input")
    function = {"name": string(part, "name", field), "arguments": arguments}
    return {"id": string(part, "id", field), "type": "function", "function": function}


def _blocks(content: object, field: str) -> list[tuple[dict[str, Any], str]]:
    if content is None or content == []:
        raise RequestError(f"{field} is empty: give a string or at least one block", field)
    return parts_of(content, field)


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
