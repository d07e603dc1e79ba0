"""Values written as text take the types that the schema allows; where a string is allowed they stay the text that they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepwell.server.parse.signatures import Signatures, read_value

TEXTS: list[Any] = [
    {"type": "string"},
    {"type": ["string", "number"]},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"oneOf": [{"type": "boolean"}, {"$ref": "#/$defs/word"}]},
    {"$ref": "#/$defs/word"},
    {"allOf": [{"$ref": "#/$defs/any"}, {"type": "string"}]},
    {"const": "1.10"},
    {"enum": ["1.10", "true"]},
    {"enum": ["1.10", 2]},
    {},
    {"description": "anything"},
    True,
    {"$ref": "#/$defs/round"},
    {"$ref": "https://example.org/elsewhere"},
    {"$ref": "#/$defs/missing"},
    {"type": "wrong", "anyOf": 5},
]
DEFS = {"word": {"type": "string"}, "any": {"type": ["string", "null", "object"]}, "round": {"$ref": "#/$defs/round"}}
NULLABLE: list[Any] = [
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"anyOf": [{"$ref": "#/$defs/word"}, {"const": None}]},
    {"enum": ["a", None]},
    {"$ref": "#/$defs/any"},
    {},
]


def read(schema: Any, text: str) -> Any:
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": DEFS}
    signatures = Signatures.of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    return json.loads(read_value(text, signatures.allowed("f", "x")))


@pytest.mark.parametrize("schema", TEXTS, ids=str)
def test_text_stays_where_a_string_is_allowed(schema: Any) -> None:
    for text in ("1.10", "true", "True", "[1]", '{"a": 1}', "", " x ", '"quoted"', "NaN", "None"):
        assert read(schema, text) == text


@pytest.mark.parametrize("schema", NULLABLE, ids=str)
def test_null_is_null_where_it_is_allowed(schema: Any) -> None:
    assert read(schema, "null") is None
    assert read(schema, "nullable") == "nullable"


def test_null_stays_text_where_it_is_not_allowed() -> None:
    assert read({"type": "string"}, "null") == "null"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "number"}, "1.10", 1.1),
        ({"type": "integer"}, " 7\n", 7),
        ({"type": "integer"}, "7.0", 7),
        ({"type": "integer"}, "7.5", "7.5"),
        ({"type": "number"}, "7", 7),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "FALSE", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "integer"}, "null", "null"),
        ({"type": "array"}, "[1, True]", [1, True]),
        ({"items": {"type": "string"}}, '["a"]', ["a"]),
        ({"properties": {"a": {}}}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": "object"}, '{"a": "\\ud800"}', {"a": "�"}),
        ({"type": "object"}, '{"a": NaN}', {"a": "NaN"}),
        ({"type": "object"}, "[" * 1500 + "]" * 1500, "[" * 1500 + "]" * 1500),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"const": 5}, "5", 5),
        ({"enum": [1, 2]}, "2", 2),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]}, "3", 3),
    ],
    ids=str,
)
def test_other_values_are_json_of_a_type_that_is_allowed_or_the_text_again(schema: Any, text: str, value: Any) -> None:
    found = read(schema, text)
    assert found == value and type(found) in (type(value), float)


def test_what_nobody_declared_is_text() -> None:
    signatures = Signatures.of([{"type": "function", "function": {"name": "f"}}])
    assert json.loads(read_value("5", signatures.allowed("f", "x"))) == "5"
    assert json.loads(read_value("5", signatures.allowed("g", "x"))) == "5"
    assert signatures.knows("f") and not signatures.knows("g") and not signatures.declares("f", "x")


def test_schemas_that_refer_to_each_other_without_end_are_read_to_a_bound() -> None:
    wide = {"anyOf": [{"$ref": "#/$defs/a"}] * 50}
    parameters = {"type": "object", "properties": {"x": wide}, "$defs": {"a": wide}}
    signatures = Signatures.of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert "string" in signatures.allowed("f", "x")


def test_schemas_that_refer_to_much_are_read_within_bounds_and_then_let_anything_pass() -> None:
    many = {"enum": [f"v{i}" for i in range(5000)]}
    parameters = {
        "type": "object",
        "properties": {f"p{i}": {"$ref": "#/$defs/any"} for i in range(300)} | {"late": {"type": "integer"}},
        "$defs": {"any": {"anyOf": [{"$ref": "#/$defs/many"}] * 1000}, "many": many},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    found = Signatures.of(tools)
    assert found.declares("f", "p299") and "string" in found.allowed("f", "p299")
    assert "integer" in found.allowed("f", "late")  # nothing that fits is refused


def test_a_long_list_of_values_is_read() -> None:
    parameters = {"type": "object", "properties": {"p": {"enum": list(range(3000))}}}
    found = Signatures.of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert "string" not in found.allowed("f", "p")
