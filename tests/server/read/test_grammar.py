"""Grammars of calls: written down, measured before they are read, and read once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from stepwell.base.errors import RequestError
from stepwell.server.read.grammar import (
    MAX_GRAMMAR,
    MAX_LINES,
    CallForm,
    Draft,
    GrammarReader,
    of_calls,
    of_structured_outputs,
)
from stepwell.server.read.trial import Trials, fault_of

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"properties": {"a": {"type": "integer"}}, "$defs": {"d": {"enum": ["x" * 900]}}},
    },
}


def regex(pattern: str) -> Callable[[], Draft]:
    return lambda: of_structured_outputs({"regex": pattern})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been read, in order."""
    seen: list[str] = []

    def counted(trials: Trials, text: str) -> str:
        seen.append(text)
        return fault_of(text)

    monkeypatch.setattr(Trials, "fault", counted)
    return seen


def test_a_grammar_is_read_once_right_or_wrong_until_it_is_forgotten(read: list[str]) -> None:
    async def run() -> None:
        reader = GrammarReader(keep=2)
        for _ in range(3):
            assert "a+" in await reader.read(regex("a+"), "")
            with pytest.raises(RequestError, match=r"structured_outputs\.grammar cannot be used"):
                await reader.read(lambda: of_structured_outputs({"grammar": "start: ("}), "")
        assert len(read) == 2
        await reader.read(regex("b"), "")
        await reader.read(regex("a+"), "")
        assert len(read) == 4

    asyncio.run(run())


def test_a_fault_names_the_field_of_the_call_that_has_it(read: list[str]) -> None:
    async def run() -> None:
        reader = GrammarReader()
        for field in ("one", "other"):
            with pytest.raises(RequestError, match=f"^{field} cannot be used: no text follows it") as told:
                await reader.read(lambda field=field: Draft("start: start", field), "")  # type: ignore[misc]
            assert told.value.param == field

    asyncio.run(run())


@pytest.mark.parametrize("form", [CallForm(tagged=True), CallForm(tagged=False)])
def test_what_is_too_long_is_refused_with_the_limit_before_it_is_read(form: CallForm, read: list[str]) -> None:
    function = TOOL["function"]
    assert isinstance(function, dict)
    many = {"properties": {f"p{i}": {"type": "integer"} for i in range(200)}, "$defs": {"d": {"enum": ["x" * 900]}}}
    for tools in ([TOOL] * 200, [{"function": {"name": "f", "parameters": many}}] * 20):
        with pytest.raises(RequestError, match=f"tools makes a grammar of .* at most {MAX_GRAMMAR:,}"):
            of_calls(tools, form, several=False)
    for value in (
        {"json": {"enum": ["x" * MAX_GRAMMAR]}},
        {"json": "[" * (MAX_GRAMMAR + 1)},
        {"regex": "a" * MAX_GRAMMAR},
    ):
        with pytest.raises(RequestError, match=f"at most {MAX_GRAMMAR:,}"):
            of_structured_outputs(value)
    assert read == []


def test_a_schema_whose_references_lead_on_and_on_is_read() -> None:
    links = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(1700)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**links, "a1700": {"type": "null"}}}
    asyncio.run(GrammarReader().read(lambda: of_structured_outputs({"json": schema}), ""))


def test_a_grammar_of_too_many_lines_is_refused_before_it_is_read(read: list[str]) -> None:
    with pytest.raises(RequestError, match="has 2,001 lines: give at most 2,000"):
        of_structured_outputs({"grammar": 'start: "a"\n' * (MAX_LINES + 1)})


@pytest.mark.parametrize("required", [True, 7, "a", {"a": 1}])
def test_required_parameters_that_are_no_list_are_the_callers_fault(required: object) -> None:
    tool = {"function": {"name": "f", "parameters": {"properties": {"a": {}}, "required": required}}}
    with pytest.raises(RequestError, match="'required' is no list") as told:
        of_calls([tool], CallForm(tagged=True), several=False)
    assert told.value.param == "tools"


def test_one_key_s_grammars_do_not_hold_up_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are read at a time: the other key's waits for no more than those."""
    seen: list[str] = []
    gate = threading.Event()

    def slowly(trials: Trials, text: str) -> str:
        assert gate.wait(20)
        seen.append(text)
        return ""

    async def run() -> None:
        reader = GrammarReader()
        many = [asyncio.create_task(reader.read(lambda i=i: Draft(f"many {i}", "f"), "many")) for i in range(8)]  # type: ignore[misc]
        await asyncio.sleep(0.05)
        other = asyncio.create_task(reader.read(lambda: Draft("other", "f"), "other"))
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(*many, other)

    monkeypatch.setattr(Trials, "fault", slowly)
    asyncio.run(run())
    assert "other" in seen[:5]
