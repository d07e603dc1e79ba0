"""Tools that a call brings along, which of them the model may or must call, and how each of them must look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepwell.base.errors import RequestError
from stepwell.server.read.schema import ChatCall
from stepwell.talk.contents import string

Tool: TypeAlias = dict[str, Any]

MAX_TOOLS = 512
_NAME = re.compile(r"[\w./:-]{1,128}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a call wants of tools.

    shown    put before the model
    forced   one of these must be called; empty: the model decides
    allowed  whether calls are looked for in the answer; otherwise the model is kept from opening one
    several  whether one answer may call more than once
    """

    shown: tuple[Tool, ...] = ()
    forced: tuple[Tool, ...] = ()
    allowed: bool = False
    several: bool = True


def read_use(call: ChatCall) -> ToolUse:
    """Tools of a call and its `tool_choice`. Raises RequestError."""
    tools = read_tools(call.tools)
    choice = call.tool_choice
    several = call.parallel_tool_calls is not False
    if choice in (None, "none", "auto"):
        return ToolUse(tools, (), bool(tools) and choice != "none", several)
    if not tools:
        raise RequestError("tool_choice asks for a call, but there are no tools", "tool_choice")
    if choice == "required":
        return ToolUse(tools, tools, True, several)
    name = choice.get("function") if isinstance(choice, dict) else None
    name = name.get("name") if isinstance(name, dict) else None
    named = tuple(tool for tool in tools if tool["function"]["name"] == name)
    if not named:
        raise RequestError(
            "tool_choice must be 'none', 'auto', 'required' or "
            "{'type': 'function', 'function': {'name': one of the tools'}}",
            "tool_choice",
        )
    return ToolUse(tools, named[:1], True, several=False)


def read_tools(value: list[dict[str, Any]] | None) -> tuple[Tool, ...]:
    """Checked tools. Raises RequestError naming the first fault."""
    tools = value or []
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools holds {len(tools)} tools: send at most {MAX_TOOLS}", "tools")
    for i, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise RequestError(f"tools.{i} must be {{'type': 'function', 'function': …}}", f"tools.{i}")
        check_function(function, f"tools.{i}.function")
    return tuple(tools)


def check_function(function: Mapping[str, Any], field: str, schema: str = "parameters") -> None:
    """`schema` is what the caller's API calls the parameters. Raises RequestError naming the first fault."""
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"{field}.name must be 1 to 128 letters, digits or any of _ . / : -", f"{field}.name")
    parameters = function.get(schema)
    if parameters is None:
        return
    if not isinstance(parameters, dict) or not isinstance(parameters.get("properties") or {}, dict):
        raise RequestError(f"{field}.{schema} must be a JSON schema", f"{field}.{schema}")
    for parameter in parameters.get("properties") or {}:
        if not parameter or set(parameter) & set(">\n"):
            raise RequestError(f"{field}.{schema} names a property {parameter[:40]!r}", f"{field}.{schema}")


def as_function(tool: Mapping[str, Any], field: str, schema: str = "parameters") -> Tool:
    """A tool of an API that knows functions alone, in the form that chats have for it. Raises RequestError."""
    check_function(tool, field, schema)
    function = {"name": tool["name"]}
    if tool.get("description") is not None:
        function["description"] = string(tool, "description", field)
    if tool.get(schema) is not None:
        function["parameters"] = tool[schema]
    return {"type": "function", "function": function}
