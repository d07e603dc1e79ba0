"""Where the beginning of a prompt is put together."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.prompt.heads import APART, MOST, Heads, spread
from stepwell.testing.agents import write_agent_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("heads")
    return Tokenizer.load(str(write_agent_tokenizer(path, 400, 4096)))


def tool(name: str, words: int) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "description": "word " * words}}


@given(st.lists(st.integers(0, 100_000), max_size=60).map(sorted))
def test_places_are_few_and_apart_and_the_first_of_any_crowd_is_there(places: list[int]) -> None:
    kept = spread(places)
    assert set(kept) <= set(places) and len(kept) <= MOST
    assert all(b - a >= APART for a, b in pairwise((0, *kept)))
    if len(kept) < MOST // 2:
        for place in places:
            assert any(place - APART < other <= place for other in (0, *kept)), "nobody loses more than that"


@pytest.mark.parametrize("between", ["\n", ", "])
def test_each_tool_and_each_system_text_begins_at_a_place(tokenizer: Tokenizer, between: str) -> None:
    tools = [tool("one", 400), tool("two", 400), tool("three", 20), tool("four", 400)]
    texts = ["Be brief. " * 90, "Be kind. " * 90, ""]
    head = "system\n" + between.join(map(json.dumps, tools)) + "\n\n" + "\n\n".join(texts)
    found = Heads(tokenizer).parts(head, tools, texts)
    ends = [
        len(tokenizer.encode(head[: head.index(word)], special=False)) for word in ('"two"', '"three"', "Be b", "Be k")
    ]
    assert len(found) == 4
    assert all(end - 48 <= place <= end + 4 for place, end in zip(found, ends, strict=True)), (found, ends)


def test_what_is_known_is_not_tokenized_again(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, tools = Heads(tokenizer), [tool("one", 400), tool("two", 400)]
    head = "\n".join(map(json.dumps, tools))
    first = heads.parts(head, tools, ())
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("it is known"))
    assert heads.parts(head, tools, ()) == first


def test_what_a_template_writes_otherwise_has_no_place(tokenizer: Tokenizer) -> None:
    assert Heads(tokenizer).parts("nothing of it " * 300, [tool("one", 4)], ["no such text"]) == ()
