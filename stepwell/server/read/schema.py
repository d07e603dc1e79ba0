"""What a call may say. Strict: a number in quotes is an error, not a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, WithJsonSchema, model_validator

from stepwell.base.errors import RequestError
from stepwell.sched.request import MAX_PRIORITY

MAX_CHOICES = 64
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_NAME = 256
MAX_TTL = 7 * 86400
"""s for which anything may be kept."""
MAX_TOP = 20
MAX_BIASES = 1024

_INT31 = 2**31 - 1
_INT63 = 2**63 - 1

# Fields that change the answer and that we cannot honour: accepted only where they ask for nothing.
_NOT_SUPPORTED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "chat_template": (),  # a template is a program: the server's own is the only one
    "custom_logit_processor": (),
    "custom_params": (),
    "documents": ([],),
    "early_stopping": (False,),
    "ebnf": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "lora_path": (),
    "modalities": (["text"],),
    "no_stop_trim": (False,),
    "prompt_embeds": (),
    "regex": (),
    "repetition_detection": (),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True,),
    "stop_regex": ("", []),
    "stream_reasoning": (True,),
    "suffix": ("",),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
# Fields that mean nothing to one engine on one machine.
_WITHOUT_EFFECT = frozenset(
    {"metadata", "prediction", "safety_identifier", "service_tier", "spaces_between_special_tokens", "store", "user"}
)


class Strict(BaseModel):
    """Fields of one object. One that is null was left out."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=(), allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: given for name, given in value.items() if given is not None}


class Named(Strict):
    """A call that may name the model it means. `size` is that of the body it came in, in bytes; 0 where it came in none."""

    model: str | None = None
    _size: int = PrivateAttr(default=0)

    @property
    def size(self) -> int:
        return self._size

    def came_in(self, size: int) -> None:
        """It was read from a body of `size` bytes."""
        self._size = size

    @classmethod
    def passed_on(cls) -> frozenset[str]:
        """Fields that are not this call's own and still have a meaning."""
        return frozenset()


class StreamOptions(Strict):
    include_usage: bool = False


Word = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much the model is to think, in words of either API; "none" forbids it."""
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Ttl = Annotated[float, Field(gt=0, le=MAX_TTL)]
Top = Annotated[int, Field(ge=0, le=MAX_TOP)]

# Read by hand, because a wrong one among thousands must be told without repeating them; described here.
_ID = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string", "minLength": 1}
_CONTENT = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            },
        },
    ]
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}, "content": _CONTENT},
}
_FUNCTION = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": r"^[A-Za-z0-9_./:-]{1,128}$"},
        "description": {"type": "string"},
        "parameters": {"type": "object"},
    },
}
_TOOL = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}
Prompts = Annotated[
    Any, WithJsonSchema({"anyOf": [_TEXT, _IDS, _TEXTS, {"type": "array", "items": _IDS, "minItems": 1}]})
]
Stops = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": MAX_STOPS}, {"type": "null"}], "default": None}
    ),
]
Messages = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "items": _MESSAGE, "minItems": 1})]
Tools = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "items": _TOOL})]
ToolChoice = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required", None]}, _TOOL], "default": None}),
]


class _Generate(Named):
    """What both generation routes share. Defaults are OpenAI's, but for `max_tokens`: all the room there is."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=_INT31)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=_INT31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_INT31)] | None = None
    seed: Annotated[int, Field(ge=0, le=_INT63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    prompt_logprobs: Top | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    return_token_ids: bool = False
    stop: Stops = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    allowed_token_ids: list[int] | None = None
    bad_words: list[Word] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    best_of: int | None = None
    cache_salt: Name | None = None
    session_id: Name | None = None
    read_cache: bool = True
    write_cache: bool = True


class CompletionCall(_Generate):
    """POST /v1/completions. `max_tokens` 0 only says the prompt again, with `echo`."""

    prompt: Prompts
    add_special_tokens: bool = True
    max_tokens: Annotated[int, Field(ge=0, le=_INT31)] | None = None
    echo: bool = False
    logprobs: Top | None = None


class ChatCall(_Generate):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, le=_INT31)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    add_special_tokens: Literal[False] | None = None
    echo: Literal[False] | None = None
    reasoning_effort: Effort | None = None


# What says how the answer to a chat is written, which another API says otherwise.
_OF_CHATS_ALONE = frozenset(
    {"messages", "n", "stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "response_format"}
    | {
        "max_completion_tokens",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "echo",
        "best_of",
        "return_token_ids",
    }
)


class Translated(Named):
    """A call of another API, answered as the chat that it amounts to; fields of chats that it has no name for are passed on."""

    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None

    @classmethod
    def passed_on(cls) -> frozenset[str]:
        return frozenset(ChatCall.model_fields) - frozenset(cls.model_fields) - _OF_CHATS_ALONE

    def chat(self, fields: Mapping[str, Any]) -> ChatCall:
        """The chat with these fields and those that are passed on. Raises RequestError."""
        extra = {name: value for name, value in (self.model_extra or {}).items() if name in self.passed_on()}
        call, _ = parse(ChatCall, {**extra, **fields})
        call.came_in(self.size)
        return call


class TokenizeCall(Named):
    """POST /tokenize: a prompt, or messages in the chat template."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    reasoning_effort: Effort | None = None
    tools: Tools | None = None


class DetokenizeCall(Named):
    """POST /detokenize."""

    tokens: list[int]


Call = TypeVar("Call", bound=Named)


def parse(kind: type[Call], body: Mapping[str, Any]) -> tuple[Call, list[str]]:
    """The call, and the names of unknown fields. Raises RequestError, which names the first wrong field."""
    _refuse_unsupported(body)
    try:
        call = kind.model_validate(dict(body))
    except ValidationError as error:
        raise _request_error(error) from error
    unknown = set(call.model_extra or {}) - _WITHOUT_EFFECT - set(_NOT_SUPPORTED) - kind.passed_on()
    return call, sorted(unknown)


def read_stops(value: object) -> tuple[str, ...]:
    """Stop strings from one string or a list of them. Raises RequestError."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise RequestError(f"stop must be a string or a list of at most {MAX_STOPS} strings", "stop")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise RequestError(f"each stop must be a string of 1 to {MAX_STOP_LENGTH} characters", "stop")
    return tuple(dict.fromkeys(stops))


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, neutral in _NOT_SUPPORTED.items():
        value = body.get(name)
        if value is not None and not any(
            value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral
        ):
            raise RequestError(f"{name} is not supported yet: leave it out", name)


def _request_error(error: ValidationError) -> RequestError:
    """The first fault as text: the field, what is wrong, and what was given."""
    fault = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in fault["loc"]]
    path = ".".join(place)
    if fault["type"] == "missing":
        return RequestError(f"{path} is missing", path)
    given = repr(fault["input"])
    given = given if len(given) <= 60 else given[:57] + "..."
    if place[-1] == "bool":  # the first of several kinds of which none fits
        path = ".".join(place[:-1])
        return RequestError(f"{path} must be a string, a number, true, false or null, not {given}", path)
    reason = fault["msg"].replace("Input should be", "must be")
    return RequestError(f"{path} {reason}, not {given}", path)
