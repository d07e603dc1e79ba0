"""The trained model in the repository: its answers make sense, its calls can be read, most drafts are right, and its state matters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell import LLM, SamplingParams
from stepwell.cache.moves import Tier
from stepwell.demo.script import write_scripts
from stepwell.engine.config import engine_config
from stepwell.eval.controls import measure
from stepwell.eval.local import LocalSubject
from stepwell.eval.task import SHOTS, TEST, Form, read_problems, write_questions
from tiny.calls import TOOLS

MODEL = Path(__file__).resolve().parents[2] / "tiny" / "model"
FLAGS: dict[str, Any] = {"dtype": "float32", "device_memory": "64MiB", "host_memory": 0}
GREEDY = SamplingParams(temperature=0, max_tokens=48)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(MODEL), num_speculative_tokens=1, **FLAGS) as made:
        yield made


def said(llm: LLM, *messages: dict[str, Any], tools: Sequence[dict[str, Any]] = ()) -> str:
    prompt = llm.tokenizer.encode(llm.tokenizer.render(messages, tools=tools))
    return llm.generate(prompt, GREEDY)[0].text.removeprefix("\n</think>").strip()


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 30_000_000


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello!", "Hello! How can I help you?"),
        ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
        ("Which day comes after Friday?", "Saturday comes after Friday."),
        ("Count from 3 to 7.", "3, 4, 5, 6, 7."),
    ],
)
def test_it_answers_what_it_was_taught(llm: LLM, question: str, answer: str) -> None:
    assert said(llm, {"role": "user", "content": question}) == answer


@pytest.mark.long
def test_it_recalls_most_of_what_it_is_told(llm: LLM) -> None:
    scripts = write_scripts(8, 1)
    right = [
        s.wanted[0] in said(llm, {"role": "system", "content": s.system}, {"role": "user", "content": s.said[0]})
        for s in scripts
    ]
    assert sum(right) >= 6


@pytest.mark.parametrize("city", ["Paris", "Oslo"])
def test_it_calls_tools_in_the_form_that_the_server_reads(llm: LLM, city: str) -> None:
    tools = [tool.schema() for tool in TOOLS[:3]]
    text = said(llm, {"role": "user", "content": f"What is the weather in {city}?"}, tools=tools)
    call = rf"<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
    assert re.fullmatch(call, text)


def test_most_first_drafts_are_what_it_says(llm: LLM) -> None:
    for script in write_scripts(8, 1, seed=1):
        said(llm, {"role": "system", "content": script.system}, {"role": "user", "content": script.said[0]})
    for question in ("Who are you?", "Tell me a joke.", "What is Stepwell?", "Write a hello world program."):
        said(llm, {"role": "user", "content": question})
    computed, accepted = map(sum, zip(*llm.stats().drafts.values(), strict=True))
    assert computed > 100 and accepted > 0.5 * computed


@pytest.mark.long
def test_what_is_wrong_with_its_state_or_its_kv_shows_in_its_loss() -> None:
    asked = write_questions(Form(7, 2, 1, open_book=True), read_problems(TEST), read_problems(SHOTS))
    with LocalSubject(engine_config({"model": str(MODEL), **FLAGS}), Tier.DEVICE, 8, 1) as subject:
        losses = measure(subject, asked[1:], 5, lambda more: None)  # it has no idea of the first
    assert losses.worst < 1e-4
    for name, (added, _) in losses.controls.items():
        assert added > 0.01, name
