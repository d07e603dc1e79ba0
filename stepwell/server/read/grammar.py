"""What an answer must look like, as a grammar for the engine: JSON, a regular expression, a choice, calls of tools.

A draft is only written down. It is read once before its call is made, so that a wrong one is refused; the engine only follows it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson
from llguidance import LLMatcher

from stepwell.base.errors import RequestError
from stepwell.engine.grammar.fair_pool import Counter, FairPool
from stepwell.server.read.trial import Trials

MAX_GRAMMAR = 100_000
"""Most characters of a grammar. A larger one would take too long to compile, and is refused before."""
MAX_CHOICES = 1024
MAX_LINES = 2000
"""Of a grammar in Lark's notation: each may hold a rule, and the time that rules of rules take grows with their square."""
_JSON: Any = {"whitespace_pattern": r"[ ]?|\n {0,32}"}  # bounded, so that no answer is spent on blanks
_TEXT = "(?s:.*)"
_AT_A_TIME = 2


@dataclass(frozen=True, slots=True)
class Draft:
    """A grammar that has not been compiled yet, and the field of the call that it comes from."""

    grammar: str
    field: str


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes calls: `tagged`, each parameter between marks of its own, or as one JSON object."""

    tagged: bool


def of_response_format(value: Mapping[str, Any]) -> Draft:
    """OpenAI's `response_format`, other than text, as a grammar. Raises RequestError."""
    return _json(schema_of(value), "response_format")


def schema_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that a `response_format`, other than text, asks for. Raises RequestError."""
    field = "response_format"
    kind = value.get("type")
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise RequestError("response_format.type must be 'text', 'json_object' or 'json_schema'", f"{field}.type")
    inner = value.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise RequestError("response_format.json_schema.schema must be an object", f"{field}.json_schema")
    return schema


def of_structured_outputs(value: Mapping[str, Any]) -> Draft:
    """One of `json`, `regex`, `choice` and `grammar` (Lark) as a grammar. Raises RequestError."""
    field = "structured_outputs"
    known = {"json": _json, "regex": _regex, "choice": _choice, "grammar": _lark}
    wanted = sorted(set(value) & set(known))
    if len(wanted) != 1:
        raise RequestError(f"{field} needs exactly one of json, regex, choice and grammar", field)
    return known[wanted[0]](value[wanted[0]], f"{field}.{wanted[0]}")


def of_calls(
    tools: Sequence[Mapping[str, Any]], form: CallForm, several: bool, answer: Mapping[str, Any] | None = None
) -> Draft:
    """At least one call of one of `tools` and nothing else, or JSON of the schema `answer` instead, where one is given.

    Raises RequestError where a schema cannot be used.
    """
    functions = [tool["function"] for tool in tools]
    more = r' ("\n" call)*' if several else ""
    lines = [
        "%llguidance {}",
        f"start: calls{'' if answer is None else ' | answer'}",
        f"calls: call{more}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(functions))),
    ]
    for i, function in enumerate(functions):
        lines += _tagged(i, function) if form.tagged else _object(i, function)
        _bounded(sum(map(len, lines)), "tools")
    if answer is not None:
        lines.append(f"answer: %json {_written({**answer, 'x-guidance': _JSON}, 'response_format')}")
    return _draft(LLMatcher.grammar_from_lark("\n".join(lines) + "\n"), "tools")


def _object(i: int, function: Mapping[str, Any]) -> list[str]:
    head = _quoted(f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": ')
    tail = _quoted("}\n</tool_call>")
    schema = {"type": "object", **(function.get("parameters") or {}), "x-guidance": _JSON}
    return [f"call_{i}: {head} arguments_{i} {tail}", f"arguments_{i}: %json {_written(schema, 'tools')}"]


def _tagged(i: int, function: Mapping[str, Any]) -> list[str]:
    """Parameters in the order of the schema, those that are not required may be left out."""
    schema = function.get("parameters") or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = _names(schema.get("required"))
    head, tail = _quoted(f"<tool_call>\n<function={function['name']}>\n"), _quoted("</function>\n</tool_call>")
    parts: list[str] = []
    rules: list[str] = []
    for j, (name, of) in enumerate(properties.items()):
        _bounded(sum(map(len, rules)), "tools")  # definitions are said again with each parameter
        rule = f"value_{i}_{j}"
        parts.append(f"parameter_{i}_{j}" + ("" if name in required else "?"))
        opening = _quoted(f"<parameter={name}>\n")
        if isinstance(of, dict) and of.get("type") == "string" and "enum" not in of:
            rules += [
                f"parameter_{i}_{j}: {opening} {rule}",
                f"{rule}[suffix={_quoted(f'{chr(10)}</parameter>{chr(10)}')}]: /{_TEXT}/",
            ]
        else:
            closing = _quoted("\n</parameter>\n")
            rules += [f"parameter_{i}_{j}: {opening} {rule} {closing}", f"{rule}: {_value(of, schema)}"]
    return [f"call_{i}: {head} {' '.join(parts)} {tail}", *rules]


def _names(required: object) -> list[object]:
    if required is not None and not isinstance(required, list):
        raise RequestError(
            "tools hold a schema whose 'required' is no list of names: give one, or leave it out", "tools"
        )
    return required or []


def _value(of: object, schema: Mapping[str, Any]) -> str:
    """A value that is not free text; definitions of the whole schema stay within reach."""
    own: dict[str, Any] = dict(of) if isinstance(of, dict) else {}
    values = own.get("enum")
    if isinstance(values, list) and values and all(isinstance(v, str) for v in values):
        return " | ".join(_quoted(v) for v in values)
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return f"%json {_written({**shared, **own, 'x-guidance': _JSON}, 'tools')}"


def _json(value: object, field: str) -> Draft:
    if isinstance(value, str):
        _bounded(len(value), field)
        try:
            value = orjson.loads(value)
        except ValueError as error:
            raise RequestError(f"{field} is not valid JSON: {error}", field) from error
    if not isinstance(value, dict):
        raise RequestError(f"{field} must be a JSON schema", field)
    _bounded(len(_written(value, field)), field)
    return _draft(LLMatcher.grammar_from_json_schema(value, _JSON), field)


def _regex(value: object, field: str) -> Draft:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{field} must be a regular expression", field)
    return _draft(LLMatcher.grammar_from_regex(value), field)


def _choice(value: object, field: str) -> Draft:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise RequestError(f"{field} must be a list of texts to choose from", field)
    if len(value) > MAX_CHOICES:
        raise RequestError(f"{field} holds {len(value):,} texts: give at most {MAX_CHOICES:,}", field)
    return _draft(LLMatcher.grammar_from_lark("start: " + " | ".join(map(_quoted, value)) + "\n"), field)


def _lark(value: object, field: str) -> Draft:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{field} must be a grammar in Lark's notation", field)
    if (lines := value.count("\n")) > MAX_LINES:
        raise RequestError(f"{field} has {lines:,} lines: give at most {MAX_LINES:,}", field)
    return _draft(LLMatcher.grammar_from_lark(value), field)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _written(value: Mapping[str, Any], field: str) -> str:
    """A schema as JSON."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:  # callers' own JSON: only its depth can be wrong
        raise RequestError(f"{field} holds a schema that is nested too deeply: at most 254 levels", field) from error


def _bounded(characters: int, field: str) -> None:
    if characters > MAX_GRAMMAR:
        raise RequestError(
            f"{field} makes a grammar of {characters:,} characters: at most {MAX_GRAMMAR:,} are read", field
        )


def _draft(grammar: str, field: str) -> Draft:
    _bounded(len(grammar), field)
    return Draft(grammar, field)


class GrammarReader:
    """Has drafts read beside the event loop, in which it lives, and remembers what was made of the last few.

    That is bounded work: what is too long is refused before, what takes too long when its time is over.
    """

    def __init__(self, keep: int = 1024) -> None:
        self._threads = ThreadPoolExecutor(_AT_A_TIME, "grammar")
        self._trials = Trials()
        self._pool = FairPool(*[Counter(self._tried)] * _AT_A_TIME)
        self._keep = keep
        self._faults: OrderedDict[bytes, str] = OrderedDict()

    async def read(self, draft: Callable[[], Draft], owner: str) -> str:
        """The grammar that `draft`, called in a thread, gives; owners' grammars are read by turns. Raises RequestError where it cannot be
        used."""
        made = await asyncio.get_running_loop().run_in_executor(self._threads, draft)
        digest = hashlib.blake2b(made.grammar.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        fault = self._faults.get(digest)
        if fault is None:
            tried = await asyncio.wrap_future(self._pool.submit(owner, b"", made.grammar))
            fault = self._faults[digest] = tried.fault
        self._faults.move_to_end(digest)
        if len(self._faults) > self._keep:
            self._faults.popitem(last=False)
        if fault:
            raise RequestError(f"{made.field} cannot be used: {fault}", made.field)
        return made.grammar

    def _tried(self, grammars: Sequence[str]) -> Iterator[_Tried]:
        for grammar in grammars:
            began = time.monotonic()
            fault = self._trials.fault(grammar)
            yield _Tried(fault, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Tried:
    """Why a grammar cannot be followed, or "", and the seconds that it took to find out."""

    fault: str
    seconds: float
