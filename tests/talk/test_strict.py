"""JSON copied out of text: what comes out is strict, what can only mean one thing is mended, the rest is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.talk.strict import MAX_DEPTH, JsonCopy, copied

MENDED: list[tuple[str, Any]] = [
    ('{"a": [1, 2,], }', {"a": [1, 2]}),
    ('["line\nbreak\tand\x01"]', ["line\nbreak\tand\x01"]),
    (r'["\d+\.py", "\q", "\u12"]', [r"\d+\.py", r"\q", r"\u12"]),
    (r'["\ud83d", "\ude00x", "\ud83d\u0041", "\ud83d\ud83d\ude00"]', ["�", "�x", "�A", "�😀"]),
    ("[True, False, None, NaN, -Infinity]", [True, False, None, "NaN", "-Infinity"]),
    ("[1e999, -1e400, 1e308]", ["1e999", "-1e400", 1e308]),
    (f"[{'9' * 308}, {'9' * 330}]", [int("9" * 308), "9" * 330]),
    (" 7 ", 7),
    ("true", True),
    ('""', ""),
]


@pytest.mark.parametrize(("text", "value"), MENDED, ids=[text[:20] for text, _ in MENDED])
def test_what_can_only_mean_one_thing_is_mended(text: str, value: Any) -> None:
    written = copied(text)
    assert written is not None and json.loads(written) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "{", "[1", '"a', "{]", "[}", "[1 2]", '{"a" 1}', '{"a": }', "{1: 2}", "{'a': 1}", "[,]", "[1,,2]"),
        *("01", "+1", "1.", ".5", "-", "1e", "hello", "[hello]", "[1] 2", "{} {}", "tru", "9" * 401, "// x\n1"),
        *("\x0c1", "\u00a01"),
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    assert copied(text) is None


def test_depth_is_bounded() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert copied(deepest) == deepest
    assert copied(f"[{deepest}]") is None
    assert copied('{"a":' * 1500) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 2]), st.integers(1, 7))
def test_strict_json_is_copied_as_it_stands(value: Any, ascii_only: bool, indent: int | None, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert copied(text) == text
    if isinstance(value, dict | list):
        copy = JsonCopy()
        out = "".join(copy.push(text[i : i + size]) for i in range(0, len(text), size))
        assert copy.done and out == text
        assert JsonCopy().push(text + "rest") == text
