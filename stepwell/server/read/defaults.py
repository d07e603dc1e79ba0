"""What a call gets where it says nothing: the sampling that the checkpoint's authors recommend, and the ends of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape

from stepwell.base.errors import ConfigError, RequestError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.model.ends import GENERATION, Ends
from stepwell.model.files import LONGEST_CONFIG, read_json
from stepwell.server.read import schema

AUTO = "auto"
_NONE = ("none", "vllm")  # vLLM's own word for the same
_FLAG = "--generation-config"
_OVERRIDE = "--override-generation-config"
# Its names for what a call may say. `do_sample` is not read: a temperature says the same.
_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """How tokens are chosen for a call that says nothing of it, in the fields of a call.

    max_tokens  None: all the room that the context has
    ends        tokens that end answers beside those that the engine knows of: what only the chat template tells
    source      what the values were read from, for people; empty where they are OpenAI's own
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    ends: tuple[int, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        """Those that differ from OpenAI's own, for people: "temperature 0.6, top_k 20"."""
        plain = SamplingDefaults()
        names = [name for name in dict.fromkeys(_FIELDS.values()) if getattr(self, name) != getattr(plain, name)]
        return ", ".join(f"{name} {getattr(self, name):g}" for name in names) or "temperature 1"


def read_defaults(model: str, which: str = AUTO, override: str | None = None) -> SamplingDefaults:
    """What `--generation-config` and `--override-generation-config` ask for. Raises ConfigError, naming the flag and the field.

    which     "auto": the model's own generation_config.json, where it has one; "none": OpenAI's defaults; or a file or folder
    override  JSON object of values that count before the file's
    """
    values: dict[str, Any] = {}
    source = ""
    path = _path(model, which)
    if path is not None:
        values, source = _known(read_json(path, LONGEST_CONFIG)), GENERATION if which == AUTO else str(path)
    if override is not None:
        values |= _known(_object(override))
        source = f"{source} and {_OVERRIDE}" if source else _OVERRIDE
    return replace(_checked(values, source), source=source) if values else SamplingDefaults()


def _path(model: str, which: str) -> Path | None:
    if which in _NONE:
        return None
    named = Path(model if which == AUTO else which)
    path = named if which != AUTO and named.is_file() else named / GENERATION
    if path.exists():
        return path
    if which == AUTO:
        return None
    raise ConfigError(f"{_FLAG} {which!r} is neither auto, none, nor a file or folder with {GENERATION}")


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {ours: values[theirs] for theirs, ours in _FIELDS.items() if values.get(theirs) is not None}


def _object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{_OVERRIDE} is not JSON ({error}): write it as '{{\"temperature\": 0.6}}'") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{_OVERRIDE} must be a JSON object, not {text[:60]!r}")
    unknown = sorted(set(value) - set(_FIELDS))
    if unknown:
        raise ConfigError(f"{_OVERRIDE} sets {unknown[0]!r}: known are {', '.join(_FIELDS)}")
    return value


def _checked(values: dict[str, Any], source: str) -> SamplingDefaults:
    """Within what a call may ask for."""
    try:
        call, _ = schema.parse(schema.CompletionCall, {"prompt": "", **values})
    except RequestError as error:
        raise ConfigError(f"{source}: {error}; or start with {_FLAG} none") from error
    found = {name: value for name in values if (value := getattr(call, name)) is not None}
    if "top_k" in found:
        found["top_k"] = max(found["top_k"], 0)
    return replace(SamplingDefaults(), **found)


def ends_of(known: Ends, tokenizer: Tokenizer) -> Ends:
    """What the checkpoint's files name, and what the chat template ends a turn with."""
    return known.with_template(tokenizer.turn_end())


def with_ends(defaults: SamplingDefaults, known: Ends, tokenizer: Tokenizer) -> SamplingDefaults:
    """The same, ending answers also where the chat template ends a turn, if the engine does not know of that token."""
    found = ends_of(known, tokenizer).tokens
    return replace(defaults, ends=tuple(token for token in found if token not in known.tokens))


def print_defaults(console: Console, defaults: SamplingDefaults, known: Ends, tokenizer: Tokenizer) -> None:
    """What ends an answer and what says so, and how tokens are chosen; warnings where the files of the model disagree."""
    ends = ends_of(known, tokenizer)
    named = "; ".join(f"{shown(token, tokenizer)} ({', '.join(ends.sources(token))})" for token in ends.tokens)
    console.print(f"Answers end at {named or 'max_tokens alone'}", highlight=False, markup=False, soft_wrap=True)
    source = f" ({defaults.source})" if defaults.source else ""
    console.print(f"Calls that say nothing get {defaults}{source}", highlight=False, markup=False, soft_wrap=True)
    for doubt in ends.doubts():
        console.print(f"[yellow]warning:[/] {escape(doubt)}", highlight=False, soft_wrap=True)


def shown(token: int, tokenizer: Tokenizer) -> str:
    """A token for people: its id and its text."""
    return f"{token} {tokenizer.token_bytes(token).decode('utf-8', 'replace')!r}"
