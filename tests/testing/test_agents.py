"""The template for agents has the traits that it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import RequestError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.testing.agents import MARKS, TEMPLATE, forgetful, write_agent_tokenizer

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "1.10", "c": [True, None]}}}
TURN: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": " go "},
    {"role": "assistant", "content": "Well.", "reasoning_content": "hm", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "two"},
    {"role": "tool", "content": "three"},
]
ANSWER = {"role": "assistant", "content": "five", "reasoning_content": "done"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(write_agent_tokenizer(tmp_path_factory.mktemp("agents"), 320)))


def test_a_turn_with_calls_is_written_as_it_is_meant(tokenizer: Tokenizer) -> None:
    call = (
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n1.10\n</parameter>\n"
        "<parameter=c>\n[true, null]\n</parameter>\n</function>\n</tool_call>"
    )
    assert tokenizer.render(TURN) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nhm\n</think>\n\nWell.\n\n{call}\n{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ntwo\n</tool_response>\n<tool_response>\nthree\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    shown = tokenizer.render(TURN, tools=[tool])
    assert shown.index('"name": "add"') < shown.index("Be kind.")


def test_thoughts_end_with_their_turn_unless_they_are_kept(tokenizer: Tokenizer, tmp_path: Path) -> None:
    later = [*TURN, ANSWER, {"role": "user", "content": "more"}]
    assert "<think>\nhm" in tokenizer.render([*TURN, ANSWER]) and "hm" not in tokenizer.render(later)
    assert "<think>\nhm" in tokenizer.render(later, variables={"preserve_thinking": True})
    response = [*TURN, {"role": "user", "content": "<tool_response>\nx\n</tool_response>"}]
    assert "<think>\nhm" in tokenizer.render(response)
    other = Tokenizer.load(str(write_agent_tokenizer(tmp_path, 320, template=forgetful(TEMPLATE))))
    assert "hm" not in other.render(later, variables={"preserve_thinking": True})
    assert tokenizer.render(TURN, variables={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
        [{"role": "system", "content": "b"}],
        [{"role": "user", "content": "a"}, {"role": "function", "content": "b"}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ],
)
def test_what_such_templates_refuse_is_refused(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(RequestError):
        tokenizer.render(messages)


def test_marks_are_one_token_each_and_shown(tokenizer: Tokenizer) -> None:
    for mark in MARKS:
        tokens = tokenizer.encode(mark, special=False)
        assert len(tokens) == 1 and tokenizer.decode(tokens.tolist()) == mark
    assert tokenizer.turn_end() == 2
