"""A call of the Responses API as the chat that it amounts to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.server.responses.schema import Format, ResponsesCall
from stepwell.server.responses.tools import Declarations
from stepwell.talk.history import Message
from stepwell.talk.order import led_by

NAMES = {"response_format": "text.format", "messages": "input", "max_tokens": "max_output_tokens"}
"""What fields of chats are called here."""

_REFUSED = ("background", "conversation", "prompt", "top_logprobs")
_SCORES = "message.output_text.logprobs"


def chat_fields(
    call: ResponsesCall, earlier: Sequence[Message], added: Sequence[Message], declared: Declarations
) -> dict[str, Any]:
    """The fields of the chat whose messages are `earlier` and then `added`. Raises RequestError naming the caller's own field."""
    _refuse(call)
    messages = led_by(call.instructions or "", [*earlier, *added])
    if not messages:
        raise RequestError("input is empty: give a text or at least one item", "input")
    return {
        "messages": messages,
        "tools": list(declared.tools) or None,
        "tool_choice": _choice(call.tool_choice, declared),
        "parallel_tool_calls": call.parallel_tool_calls,
        "response_format": _format(None if call.text is None else call.text.format),
        "chat_template_kwargs": call.chat_template_kwargs,
        "reasoning_effort": None if call.reasoning is None else call.reasoning.effort,
        "max_tokens": call.max_output_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "stream": call.stream,
    }


def _format(given: Format | None) -> dict[str, Any] | None:
    if given is None or given.type != "json_schema":
        return None if given is None else {"type": given.type}
    if given.json_schema is None:
        raise RequestError("text.format.schema is missing", "text.format.schema")
    return {"type": "json_schema", "json_schema": {"name": given.name or "answer", "schema": given.json_schema}}


def _choice(choice: object, declared: Declarations) -> object:
    if choice is None or isinstance(choice, str):
        return choice
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "custom"):
        raise RequestError(
            "tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'name': one of the tools'}",
            "tool_choice",
        )
    names = declared.names(choice["type"], choice.get("name"))
    if not names:
        raise RequestError("tool_choice.name must be the name of one of the tools", "tool_choice.name")
    return {"type": "function", "function": {"name": names[0]}}


def _refuse(call: ResponsesCall) -> None:
    """Refuse what would change the answer and cannot be done."""
    for name in _REFUSED:
        if (call.model_extra or {}).get(name):
            raise RequestError(f"{name} is not supported: leave it out", name)
    if _SCORES in (call.include or ()):
        raise RequestError(f"include holds {_SCORES!r}: log-probabilities are given by /v1/chat/completions", "include")
