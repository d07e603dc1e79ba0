"""What a call of the Responses API may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from stepwell.server.read.schema import Effort, Name, Strict, Translated

_STRING = {"type": "string"}


def _item(kind: str, **fields: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **fields}
    return {"type": "object", "required": list(properties), "properties": properties}


_PARTS = {
    "anyOf": [
        _STRING,
        {"type": "array", "items": {"anyOf": [_item("input_text", text=_STRING), _item("output_text", text=_STRING)]}},
    ]
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": _PARTS,
    },
}
_THOUGHTS = {"type": "array", "items": _item("reasoning_text", text=_STRING)}
_SUMMARY = {"type": "array", "items": _item("summary_text", text=_STRING)}
_ITEMS = {
    "type": "array",
    "items": {
        "anyOf": [
            _MESSAGE,
            _item("function_call", call_id=_STRING, name=_STRING, arguments=_STRING),
            _item("function_call_output", call_id=_STRING, output=_PARTS),
            _item("reasoning", summary=_SUMMARY, content=_THOUGHTS),
        ]
    },
}
_FUNCTION = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {
        "type": {"const": "function"},
        "name": {"type": "string", "pattern": r"^[A-Za-z0-9_./:-]{1,128}$"},
        "description": {"type": "string"},
        "parameters": {"type": "object"},
    },
}
_CHOICE = {"anyOf": [{"enum": ["none", "auto", "required", None]}, _item("function", name=_STRING)], "default": None}
Input = Annotated[Any, WithJsonSchema({"anyOf": [_STRING, _ITEMS]})]
Tools = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "items": _FUNCTION})]
ToolChoice = Annotated[Any, WithJsonSchema(_CHOICE)]


class Reasoning(Strict):
    """How much the model is to think, in words that its template may know; "none" forbids it. `summary`: where thoughts are put."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class Format(Strict):
    """The form of the text: any, an object, or what a schema says."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")

    def given(self) -> dict[str, Any]:
        """As the caller wrote it."""
        fields = {"type": self.type, "name": self.name, "schema": self.json_schema}
        return {name: value for name, value in fields.items() if value is not None}


class Text(Strict):
    format: Format | None = None


class ResponsesCall(Translated):
    """POST /v1/responses. `store` keeps the answer, so that the next call may name it instead of repeating the conversation."""

    input: Input
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
