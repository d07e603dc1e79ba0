"""Tools of the Responses API as functions, and back: what the model calls as a function goes to its caller in the form that it declared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.server.read.hosted import LeftOut
from stepwell.server.read.tools import Tool, as_function
from stepwell.talk.history import INPUT
from stepwell.talk.items import flat_name

_FREE_TEXT = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_STRING = re.compile(r'(?:[^"\\]|\\.)*')
_LONGEST_HEAD = 64


@dataclass(frozen=True, slots=True)
class Declared:
    """How a caller knows a tool: by `name` within a `namespace` ("" for none); `custom` ones take text instead of arguments."""

    name: str
    namespace: str = ""
    custom: bool = False

    def item(self, call_id: str, arguments: str) -> dict[str, Any]:
        """A call of it."""
        if self.custom:
            return {"type": "custom_tool_call", "call_id": call_id, "name": self.name, "input": input_of(arguments)}
        call = {"type": "function_call", "call_id": call_id, "name": self.name, "arguments": arguments}
        return call | ({"namespace": self.namespace} if self.namespace else {})


@dataclass(frozen=True, slots=True)
class Declarations:
    """The tools of a call as functions for the model, and by the names of these how the caller knows them."""

    tools: tuple[Tool, ...]
    known: Mapping[str, Declared]

    def of(self, function: str) -> Declared:
        return self.known.get(function, Declared(function))

    def names(self, kind: object, name: object) -> list[str]:
        """Functions that a caller means by a tool's type and name."""
        custom = kind == "custom"
        return [f for f, d in self.known.items() if d.custom == custom and name in (d.name, f)]


def declarations(tools: Sequence[Mapping[str, Any]], left_out: LeftOut) -> Declarations:
    """Functions, custom tools and namespaces of either; others, which a provider runs, are left out. Raises RequestError."""
    shown: list[Tool] = []
    known: dict[str, Declared] = {}
    for i, tool in enumerate(tools):
        field, kind = f"tools.{i}", tool.get("type")
        if not isinstance(kind, str):
            raise RequestError(f"{field}.type must be 'function'", f"{field}.type")
        inner = tool.get("tools") if kind == "namespace" else [tool]
        if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
            raise RequestError(f"{field}.tools must be a list of tools", f"{field}.tools")
        space = str(tool.get("name") or "") if kind == "namespace" else ""
        for j, one in enumerate(inner):
            place = f"{field}.tools.{j}" if kind == "namespace" else field
            if one.get("type") not in ("function", "custom"):
                left_out.note(str(one.get("type")))
                continue
            function = _function(one, place, space)
            shown.append(function)
            declared = Declared(one["name"], space, one["type"] == "custom")
            known[function["function"]["name"]] = declared
    return Declarations(tuple(shown), known)


def _function(tool: Mapping[str, Any], field: str, space: str) -> Tool:
    if tool["type"] == "function":
        function = as_function(tool, field)
    else:
        function = as_function({**tool, "description": _described(tool), "parameters": _FREE_TEXT}, field)
    function["function"]["name"] = flat_name(space, function["function"]["name"])
    return function


def _described(tool: Mapping[str, Any]) -> str:
    """What a custom tool says of itself, and of the form of its input."""
    form = tool.get("format")
    grammar = form.get("definition") if isinstance(form, dict) else None
    said = tool.get("description")
    lines = [said] if isinstance(said, str) and said else []
    if isinstance(grammar, str):
        lines.append(f"The input follows this grammar ({form.get('syntax', 'lark')}):\n{grammar}")  # type: ignore[union-attr]
    return "\n\n".join(lines)


def input_of(arguments: str) -> str:
    """The text in the arguments of a custom tool's call; all of them where they hold none, or have no end."""
    try:
        found = json.loads(arguments).get(INPUT)
    except (ValueError, AttributeError):
        return InputText().push(arguments)
    return found if isinstance(found, str) else arguments


class InputText:
    """Takes the text out of a custom tool's arguments while they come. Pieces never end within an escape."""

    __slots__ = ("_head", "_inside", "_over")

    def __init__(self) -> None:
        self._head = ""
        self._inside = False
        self._over = False

    def push(self, arguments: str) -> str:
        if self._over:
            return ""
        if not self._inside:
            self._head += arguments
            head = _HEAD.match(self._head)
            self._over = head is None and len(self._head) > _LONGEST_HEAD
            if head is None:
                return ""
            arguments, self._inside = self._head[head.end() :], True
        string = _STRING.match(arguments)
        assert string is not None
        self._over = string.end() < len(arguments)
        return str(json.loads(f'"{string[0]}"'))
