"""The types that tools declare for their parameters, and what a value written as text stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stepwell.talk.strict import copied

Types: TypeAlias = frozenset[str]

ALL: Types = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_STRING: Types = frozenset({"string"})
_FIRST = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_DEEPEST = 16  # references and combinations within each other that are followed
_MOST = 20_000  # schemas and listed values that are looked at for one call


@dataclass(frozen=True, slots=True)
class Signatures:
    """What may be called: by name of the tool, then of the parameter, the JSON types that a value may have."""

    types: Mapping[str, Mapping[str, Types]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Signatures:
        """From checked tools in OpenAI's form."""
        functions = [tool["function"] for tool in tools]
        budget = _Budget(_MOST)
        return cls({function["name"]: _declared(function.get("parameters"), budget) for function in functions})

    def knows(self, tool: str) -> bool:
        return tool in self.types

    def declares(self, tool: str, parameter: str) -> bool:
        return parameter in self.types.get(tool, ())

    def allowed(self, tool: str, parameter: str) -> Types:
        """The types of a value; text for an undeclared parameter."""
        return self.types.get(tool, {}).get(parameter, _STRING)


def read_value(text: str, allowed: Types) -> str:
    """The strict JSON that `text` stands for, where a parameter is written as text.

    Where a string is allowed the text stays as it is, but for `null` where null is allowed, too. Otherwise it is JSON of an allowed type.
    Where it is not that, it is the text again: the tool can then say what is wrong with it.
    """
    if "string" in allowed:
        return "null" if "null" in allowed and text.strip() == "null" else quoted(text)
    value = copied(text)
    if value is None or value.startswith('"'):
        value = _WORDS.get(text.strip().lower())
    return value if value is not None and _type(value) & allowed else quoted(text)


def quoted(text: str) -> str:
    """`text` as a JSON string, in characters that may be sent."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace").decode()


def _type(value: str) -> Types:
    """The types that a value, written as JSON, is of."""
    kind = _FIRST.get(value[0])
    if kind is not None:
        return frozenset({kind})
    return frozenset({"number", "integer"}) if float(value).is_integer() else frozenset({"number"})


@dataclass(slots=True)
class _Budget:
    """What may still be looked at. Once it is spent, a parameter may be anything: so nothing that fits is refused."""

    left: int

    def spend(self, count: int) -> bool:
        """False where it is spent."""
        self.left -= count
        return self.left >= 0


def _declared(parameters: object, budget: _Budget) -> dict[str, Types]:
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(parameters, dict) or not isinstance(properties, dict):
        return {}
    schemas = _Schemas(parameters, budget)
    return {name: schemas.types(schema) for name, schema in properties.items()}


class _Schemas:
    """Reads the types out of the schemas of one tool. Bounded, however they refer to each other."""

    def __init__(self, root: Mapping[str, Any], budget: _Budget) -> None:
        self._root = root
        self._budget = budget

    def types(self, schema: object, depth: int = 0) -> Types:
        """Types of the values that `schema` lets pass, as far as `type`, values and combinations tell."""
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return ALL
        values = schema.get("enum")
        if not self._budget.spend(1 + (len(values) if isinstance(values, list) else 0)):
            return ALL
        found = _own(schema)
        if isinstance(schema.get("$ref"), str):
            found &= self.types(self._target(schema["$ref"]), depth + 1)
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                found &= frozenset().union(*(self.types(each, depth + 1) for each in schema[name]))
        for each in schema.get("allOf") or () if isinstance(schema.get("allOf"), list) else ():
            found &= self.types(each, depth + 1)
        return found

    def _target(self, reference: str) -> object:
        """What a reference within the same document leads to."""
        found: object = self._root
        for step in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else [""]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found


def _own(schema: Mapping[str, Any]) -> Types:
    """What a schema says without any other's help; of several kinds of value where it says nothing: all."""
    declared = schema.get("type")
    if isinstance(declared, str):
        found = frozenset({declared})
    elif isinstance(declared, list) and declared:
        found = frozenset(name for name in declared if isinstance(name, str))
    elif "properties" in schema or isinstance(schema.get("additionalProperties"), dict):
        found = frozenset({"object"})
    else:
        found = frozenset({"array"}) if "items" in schema or "prefixItems" in schema else ALL
    found |= {"integer"} if "number" in found else frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        found &= frozenset().union(*map(_of, values))
    return found


def _of(value: object) -> Types:
    match value:
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return frozenset({"number", "integer"})
        case str():
            return _STRING
        case None:
            return frozenset({"null"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})
