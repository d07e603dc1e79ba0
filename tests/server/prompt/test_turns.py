"""What a turn computes again, on a real, very small model and a template that forgets what was thought in earlier turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from stepwell.engine.build import build_engine
from stepwell.engine.config import EngineConfig
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.prompt.heads import APART
from stepwell.server.prompt.template_use import TemplateUse
from stepwell.testing.agents import TEMPLATE, forgetful, write_agent_tokenizer
from stepwell.testing.checkpoint import write_checkpoint
from tests.engine.scripted import CONTEXT, VOCAB
from tests.server.harness import Running, eventually, running

GRID = 64
SYSTEM = {"role": "system", "content": "The wells of Rajasthan go down by steps, and so does this text. " * 8}
ASK = {"role": "user", "content": "How deep is it? " * 4}
STEP: list[Any] = [
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Where would it say how deep it is? " * 3,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "/wells/depths"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "It goes down thirteen storeys. " * 4},
]
AGAIN = {"role": "user", "content": "And how old?"}


@contextlib.contextmanager
def serving(path: Path, template: str, **use: Any) -> Iterator[Running]:
    torch.set_num_threads(1)
    write_checkpoint(path, hidden=64, layers=4, vocab=VOCAB, max_positions=CONTEXT)
    write_agent_tokenizer(path, VOCAB, CONTEXT, template)
    config = EngineConfig(
        str(path), device="cpu", device_memory=96 * 2**20, host_memory=0, max_num_batched_tokens=256, max_num_seqs=4
    )
    loop = build_engine(config, lambda facts: None)
    with running(Tokenizer.load(str(path)), loop=loop, template=TemplateUse(**use)) as server:
        yield server


def chat(server: Running, messages: list[Any], **fields: Any) -> dict[str, Any]:
    """An answer of some tokens that a stop token ends, as a final one does."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 40, **fields}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def final(server: Running, messages: list[Any], **fields: Any) -> dict[str, Any]:
    """An answer that ends by itself: whatever token came last ends it when it is asked for again."""
    probe = chat(server, messages, read_cache=False, write_cache=False, return_token_ids=True, **fields)
    last = probe["choices"][0]["token_ids"][-1]
    found = chat(server, messages, stop_token_ids=[last], **fields)
    assert found["choices"][0]["finish_reason"] == "stop"
    return found


def recomputed(found: dict[str, Any]) -> int:
    usage = found["usage"]
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])


def tokens(server: Running, messages: list[Any], **fields: Any) -> list[int]:
    found: list[int] = httpx.post(server.url + "/tokenize", json={"messages": messages, **fields}).json()["tokens"]
    return found


def ahead(server: Running) -> float:
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("stepwell_look_ahead_requests_total")).split()[1])


def cached_by_calls(server: Running) -> dict[str, float]:
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    return {
        line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("stepwell_prompt_tokens_total")
    }


@pytest.mark.parametrize("thinks", [True, False])
def test_the_next_turn_of_a_forgetful_template_goes_on_where_the_last_one_ended(tmp_path: Path, thinks: bool) -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": thinks}}
    with serving(tmp_path, forgetful(TEMPLATE)) as server:
        messages = [SYSTEM, ASK, *STEP]
        for turn in range(2):
            answer = final(server, messages, **fields)["choices"][0]["message"]
            before = cached_by_calls(server)
            assert eventually(lambda turn=turn: ahead(server) == turn + 1)
            assert cached_by_calls(server) == before, "what is computed ahead is no call's"
            said = {
                "role": "assistant",
                "content": answer["content"],
                "reasoning_content": answer.get("reasoning_content"),
            }
            messages = [*messages, said]
            known = len(tokens(server, [*messages, AGAIN], **fields)) - len(tokens(server, [AGAIN], **fields))
            messages = [*messages, AGAIN, *STEP]
            found = chat(server, messages[: -len(STEP)], max_tokens=1, write_cache=False, **fields)
            assert known - found["usage"]["prompt_tokens_details"]["cached_tokens"] <= GRID
        assert eventually(lambda: server.client.open == 0 and server.loop.stats().leases == 0)


def test_without_looking_ahead_the_turn_is_computed_again_and_with_a_preserving_template_it_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    again = {}
    for name, template, use in (("a", forgetful(TEMPLATE), {"look_ahead": False}), ("b", TEMPLATE, {})):
        with serving(tmp_path / name, template, **use) as server:
            answer = final(server, [SYSTEM, ASK, *STEP])["choices"][0]["message"]
            time.sleep(0.2)
            assert name == "b" or ahead(server) == 0
            said = {
                "role": "assistant",
                "content": answer["content"],
                "reasoning_content": answer.get("reasoning_content"),
            }
            again[name] = recomputed(chat(server, [SYSTEM, ASK, *STEP, said, AGAIN], max_tokens=1))
    assert again["a"] > again["b"]


def test_any_call_ends_what_is_computed_ahead(tmp_path: Path) -> None:
    with serving(tmp_path, forgetful(TEMPLATE)) as server:
        final(server, [SYSTEM, ASK, *STEP])
        for i in range(5):
            assert chat(server, [SYSTEM, {"role": "user", "content": f"number {i}"}], max_tokens=2)["usage"]
        assert eventually(lambda: server.client.open == 0)


def test_a_new_process_of_a_client_resumes_before_its_instructions_part(tmp_path: Path) -> None:
    """The end of the instructions changes from one process to the next; everything before it is found."""
    with serving(tmp_path, TEMPLATE) as server:

        def ask(status: str) -> dict[str, Any]:
            system = {"role": "system", "content": SYSTEM["content"] * 3 + f"git status: {status}"}
            return chat(server, [system, ASK], max_tokens=1)

        first = ask("clean, on main")
        second = ask("three files changed")
        asked = len(tokens(server, [ASK]))
        head = second["usage"]["prompt_tokens"] - asked
        assert recomputed(first) == first["usage"]["prompt_tokens"] > 1024
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= head - 64 - GRID


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"What {name} does takes some words to say. " * 8,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read", "write", "list", "search", "ask", "task", "fetch", "run", "stop")
]


def test_a_sub_agent_with_fewer_tools_resumes_before_the_one_that_it_lacks(tmp_path: Path) -> None:
    with serving(tmp_path, TEMPLATE) as server:
        whole = chat(server, [SYSTEM, ASK], tools=TOOLS, max_tokens=1)
        fewer = [tool for tool in TOOLS if tool["function"]["name"] != "task"]
        same = _common(*(tokens(server, [SYSTEM, ASK], tools=tools) for tools in (TOOLS, fewer)))
        sub = chat(server, [SYSTEM, ASK], tools=fewer, max_tokens=1)
        assert recomputed(whole) == whole["usage"]["prompt_tokens"] > 2 * same > 2 * 512
        assert same - APART - GRID <= sub["usage"]["prompt_tokens_details"]["cached_tokens"] <= same


def test_what_a_client_leaves_out_of_its_instructions_parts_where_the_next_message_begins(tmp_path: Path) -> None:
    """Instructions come as several messages; after a compaction only the first of them leads."""
    first, second = (
        {"role": "developer", "content": f"{name} instructions say this. " * 60} for name in ("My", "Other")
    )
    with serving(tmp_path, TEMPLATE) as server:
        chat(server, [first, second, ASK], max_tokens=1)
        same = _common(tokens(server, [first, second, ASK]), tokens(server, [first, ASK]))
        later = chat(server, [first, ASK, second, AGAIN], max_tokens=1)
        assert later["usage"]["prompt_tokens_details"]["cached_tokens"] >= same - 2 * GRID > 512


def _common(one: list[int], other: list[int]) -> int:
    """Tokens before the two differ."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
