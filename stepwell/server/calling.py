"""Calls of tools as models write them, read while they are being written.

Two ways are in use, both between the same marks; what follows the opening mark tells which one it is:

    <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
    <tool_call><function=f><parameter=x>1</parameter></function></tool_call>

Neither is searched for its closing mark, because an argument may contain it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.server.deltas import CallGrew, CallOpened, Delta

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_END_OF_FUNCTION = re.compile(r"\s*</function>")
_END_OF_VALUE = re.compile(r"\n?</parameter>")
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


@dataclass(frozen=True, slots=True)
class Signatures:
    """The types that each tool declares for its parameters, by name of the tool, then of the parameter."""

    types: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Signatures:
        """From checked tools in OpenAI's form."""
        functions = [tool["function"] for tool in tools]
        return cls({function["name"]: _types(function.get("parameters")) for function in functions})

    def read(self, tool: str, parameter: str, text: str) -> object:
        """The value that `text` stands for: JSON, unless the parameter is a string or `text` is not JSON."""
        known = self.types.get(tool, {}).get(parameter)
        if known is None or known == "string":
            return text
        try:
            return json.loads(text)
        except ValueError:
            words: dict[str, object] = {"true": True, "false": False, "none": None}
            return words.get(text.strip().lower(), text)


class JsonEnd:
    """Finds the end of one JSON object in text that comes in pieces; looks at each character once."""

    __slots__ = ("_depth", "_escaped", "_in_text")

    def __init__(self, depth: int = 0) -> None:
        """`depth` objects are open already."""
        self._depth = depth
        self._in_text = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """How much of `text` still belongs to the object, or None where it goes on."""
        for i, char in enumerate(text):
            if self._in_text:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_text = False
            elif char == '"':
                self._in_text = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + 1
        return None


class CallReader:
    """Reads one call, from behind its opening mark. `rest` is what follows it once `done`.

    Where the text turns out to be no call, `failed` is set and `rest` is all of it.
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_id",
        "_index",
        "_name",
        "_raw",
        "_signatures",
        "_step",
        "_written",
        "done",
        "rest",
    )

    def __init__(self, index: int, new_id: Callable[[], str], signatures: Signatures) -> None:
        self._index = index
        self._id = new_id
        self._signatures = signatures
        self._buffer = ""
        self._raw = ""
        self._step: Callable[[], list[Delta] | None] = self._begin
        self._end = JsonEnd()
        self._name = ""
        self._written = 0
        self.done = False
        self.rest = ""

    @property
    def opened(self) -> bool:
        """Whether the caller has heard of this call."""
        return bool(self._name)

    @property
    def failed(self) -> bool:
        return self.done and not self.opened

    def push(self, text: str) -> list[Delta]:
        """What can be told of the call after more text."""
        self._buffer += text
        if not self.opened:
            self._raw += text
        out: list[Delta] = []
        while not self.done and (found := self._step()) is not None:
            out += found
        return out

    def flush(self) -> str:
        """The answer has ended. What must be shown as text, because no call came of it."""
        return "" if self.opened or self.done else OPEN + self._raw

    def _begin(self) -> list[Delta] | None:
        start = self._buffer.lstrip()
        if start.startswith("{"):
            self._step = self._json_head
        elif start.startswith("<function="):
            self._step = self._function
        elif start and not "<function=".startswith(start):
            return self._fail()
        else:
            return None
        return []

    def _fail(self) -> list[Delta]:
        self.done = True
        self.rest = OPEN + self._raw
        return []

    def _open(self, name: str) -> CallOpened:
        self._name = name
        self._raw = ""
        return CallOpened(self._index, self._id(), name)

    def _json_head(self) -> list[Delta] | None:
        """The name comes first as a rule, and then the arguments can be passed on as they are written."""
        head = _HEAD.match(self._buffer)
        if head is not None and (name := _text_of(head[1])):
            self._buffer = self._buffer[head.end() :]
            self._step = self._json_arguments
            return [self._open(name)]
        end = JsonEnd().find(self._buffer)
        if end is None:
            return None
        name, arguments = _whole_call(self._buffer[:end])
        if not name:
            return self._fail()
        self._buffer = self._buffer[end:]
        self._step = self._close
        return [self._open(name), CallGrew(self._index, arguments)]

    def _json_arguments(self) -> list[Delta] | None:
        end = self._end.find(self._buffer)
        text = self._buffer if end is None else self._buffer[:end]
        self._buffer = self._buffer[len(text) :]
        if end is not None:
            self._step = self._json_tail
        elif not text:
            return None
        return [CallGrew(self._index, text)]

    def _json_tail(self) -> list[Delta] | None:
        """What else the call's object holds, and the brace that closes it; a model that forgets it goes on to the mark."""
        rest = self._buffer.lstrip()
        end: int | None = 0
        if not rest.startswith("<"):
            end = JsonEnd(depth=1).find(rest)
        if not rest or end is None:
            return None
        self._buffer = rest[end:]
        self._step = self._close
        return []

    def _function(self) -> list[Delta] | None:
        head = _FUNCTION.match(self._buffer)
        if head is None:
            return self._fail() if "\n" in self._buffer.lstrip() else None
        self._buffer = self._buffer[head.end() :]
        self._step = self._parameter
        return [self._open(head[1].strip()), CallGrew(self._index, "{")]

    def _parameter(self) -> list[Delta] | None:
        """One whole parameter, or the end of them."""
        if (end := _END_OF_FUNCTION.match(self._buffer)) is not None:
            self._buffer = self._buffer[end.end() :]
            self._step = self._close
            return [CallGrew(self._index, "}")]
        head = _PARAMETER.match(self._buffer)
        stop = None if head is None else _END_OF_VALUE.search(self._buffer, head.end())
        if head is None or stop is None:
            return None
        name = head[1].strip()
        value = self._signatures.read(self._name, name, self._buffer[head.end() : stop.start()])
        self._buffer = self._buffer[stop.end() :]
        comma = ", " if self._written else ""
        self._written += 1
        return [CallGrew(self._index, f"{comma}{_json(name)}: {_json(value)}")]

    def _close(self) -> list[Delta] | None:
        """Drop the closing mark; a model that forgets it goes on with other text."""
        rest = self._buffer.lstrip()
        if len(rest) < len(CLOSE) and CLOSE.startswith(rest):
            return None
        self.done = True
        self.rest = rest.removeprefix(CLOSE)
        return []


def _types(parameters: object) -> dict[str, object]:
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _type(schema) for name, schema in properties.items() if isinstance(schema, dict)}


def _type(schema: Mapping[str, Any]) -> object:
    """The declared type; "any" where several or none are declared, but for an enumeration of strings."""
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return "string"
    declared = schema.get("type")
    return declared if isinstance(declared, str) else "any"


def _whole_call(text: str) -> tuple[str, str]:
    """Name and arguments of a call written in an unusual order; an empty name where it is no call."""
    try:
        value = json.loads(text)
    except ValueError:
        return "", ""
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name:
        return "", ""
    if isinstance(arguments, str):
        return name, arguments
    return name, _json({} if arguments is None else arguments)


def _text_of(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
