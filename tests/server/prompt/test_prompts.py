"""What may take long is read beside the event loop, so that streams keep flowing."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.base.errors import RequestError
from stepwell.engine.config import EngineFacts
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.errors import PromptTooLong
from stepwell.server.prompt.beside import Beside
from stepwell.server.prompt.prompts import PromptReader
from stepwell.server.prompt.render import Renderer
from stepwell.server.prompt.template_use import TemplateUse
from stepwell.server.prompt.templates import InPlace
from stepwell.server.read.schema import ChatCall
from stepwell.server.read.tools import read_use
from tests.server.templates import talking_tokenizer

TOOL = {"type": "function", "function": {"name": "f", "description": "x" * 5000}}
CALL = {"function": {"name": "f", "arguments": '{"a": "' + "x" * 5000 + '"}'}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("talker")
    return talking_tokenizer(directory)


class Watched:
    """A tokenizer that remembers which threads it has worked in."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.threads: set[threading.Thread] = set()

    def fewest(self, text: str) -> int:
        self.threads.add(threading.current_thread())
        return self._tokenizer.fewest(text)

    def encode(self, *args: Any, **named: Any) -> np.ndarray:
        self.threads.add(threading.current_thread())
        return self._tokenizer.encode(*args, **named)


def prompt_reader(watched: Any, longest: int, tokenizer: Tokenizer) -> PromptReader:
    facts, beside = EngineFacts("tiny", longest, 320, ()), Beside()
    renderer = Renderer.of(tokenizer, TemplateUse())
    return PromptReader(watched, facts, renderer, InPlace(tokenizer.chat, beside), beside)


def beside_the_loop(tokenizer: Tokenizer, **fields: Any) -> bool:
    watched: Any = Watched(tokenizer)
    reader = prompt_reader(watched, 100_000, tokenizer)
    call = ChatCall.model_validate(fields)
    call.came_in(len(json.dumps(fields)))
    asyncio.run(reader.chat(call, read_use(call).shown))
    return threading.current_thread() not in watched.threads


def test_a_short_chat_is_read_at_once_and_a_long_one_beside(tokenizer: Tokenizer) -> None:
    assert not beside_the_loop(tokenizer, messages=[{"role": "user", "content": "hi"}])
    assert beside_the_loop(tokenizer, messages=[{"role": "user", "content": "hi " * 1000}])


def test_tools_calls_and_thoughts_count_as_well_as_what_was_said(tokenizer: Tokenizer) -> None:
    user = {"role": "user", "content": "hi"}
    assert beside_the_loop(tokenizer, messages=[user], tools=[TOOL])
    assert beside_the_loop(tokenizer, messages=[user, {"role": "assistant", "tool_calls": [CALL]}, user])
    thought = {"role": "assistant", "content": "", "reasoning_content": "x" * 5000}
    assert beside_the_loop(tokenizer, messages=[user, thought, user])
    odd = {"role": "assistant", "content": "", "reasoning_content": 5}
    with pytest.raises(RequestError, match="the chat template refuses"):
        beside_the_loop(tokenizer, messages=[user, odd, user])


def test_all_of_a_body_counts_whatever_it_holds(tokenizer: Tokenizer) -> None:
    assert beside_the_loop(tokenizer, messages=[{"role": "user", "content": ""}] * 500)
    assert beside_the_loop(tokenizer, messages=[{"role": "user" * 1000, "content": "x"}])


def test_text_that_cannot_be_short_enough_is_refused_before_it_is_tokenized(tokenizer: Tokenizer) -> None:
    watched: Any = Watched(tokenizer)
    watched.encode = None
    reader = prompt_reader(watched, 100, tokenizer)
    for text in ("ab cd " * 60, "x" * 100_000):
        with pytest.raises(PromptTooLong):
            asyncio.run(reader.completion(text))
        call = ChatCall.model_validate({"messages": [{"role": "user", "content": text}]})
        with pytest.raises(PromptTooLong):
            asyncio.run(reader.chat(call, ()))


@given(text=st.text(max_size=300))
def test_the_fewest_tokens_are_never_more_than_there_are(tokenizer: Tokenizer, text: str) -> None:
    for said in (text, f"<|im_start|>{text}<|im_end|></think>", text * 5, "a b " * len(text)):
        assert tokenizer.fewest(said) <= len(tokenizer.encode(said, special=False))
