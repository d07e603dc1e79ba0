"""What a call of the Messages API may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from stepwell.server.read.schema import MAX_STOP_LENGTH, MAX_STOPS, Effort, Strict, Translated

_TEXT = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT}]}
_BLOCK = {
    "anyOf": [
        _TEXT,
        {
            "type": "object",
            "required": ["type", "thinking", "signature"],
            "properties": {
                "type": {"const": "thinking"},
                "thinking": {"type": "string"},
                "signature": {"type": "string"},
            },
        },
        {
            "type": "object",
            "required": ["type", "id", "name", "input"],
            "properties": {
                "type": {"const": "tool_use"},
                "id": {"type": "string"},
                "name": {"type": "string"},
                "input": {"type": "object"},
            },
        },
        {
            "type": "object",
            "required": ["type", "tool_use_id"],
            "properties": {
                "type": {"const": "tool_result"},
                "tool_use_id": {"type": "string"},
                "content": _TEXTS,
                "is_error": {"type": "boolean"},
            },
        },
    ]
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["user", "assistant", "system"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _BLOCK, "minItems": 1}]},
    },
}
_TOOL = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {
        "name": {"type": "string", "pattern": r"^[A-Za-z0-9_./:-]{1,128}$"},
        "description": {"type": "string"},
        "input_schema": {"type": "object"},
    },
}
Messages = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "items": _MESSAGE, "minItems": 1})]
System = Annotated[Any, WithJsonSchema({"anyOf": [*_TEXTS["anyOf"], {"type": "null"}], "default": None})]
Tools = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "items": _TOOL})]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class Thinking(Strict):
    """Whether the model may think. How long it does so is its own affair: `budget_tokens` is checked, and limits nothing."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class Choice(Strict):
    """Which tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Metadata(Strict):
    user_id: str | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    format: OutputFormat | None = None
    effort: Effort | None = None


class CountCall(Translated):
    """POST /v1/messages/count_tokens."""

    messages: Messages
    system: System = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None


class MessagesCall(CountCall):
    """POST /v1/messages. `max_tokens` 0 only reads the prompt, so that it is cached."""

    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)]
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None
    stream: bool = False
