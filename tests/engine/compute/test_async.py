"""A real model says the same whether steps are launched ahead or not, whatever its requests ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.engine.compute.torch_runner import TorchRunner  # noqa: E402
from stepwell.engine.llm import LLM, Completion  # noqa: E402
from stepwell.sched.request import Finished, Request, SamplingParams, Tokens  # noqa: E402
from stepwell.sched.step import Pass, Step  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402

FLAGS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "device_memory": "4MiB",
    "host_memory": "4MiB",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "deterministic": True,
}
PROMPTS = [np.random.default_rng(n).integers(3, 512, 40 + 50 * n).astype(np.int32) for n in range(5)]
PARAMS = [
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0, seed=3, top_p=0.9, min_p=0.01),
    SamplingParams(max_tokens=20, ignore_eos=True, presence_penalty=1.0, frequency_penalty=0.5),
    SamplingParams(max_tokens=20, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.7, top_k=20, repetition_penalty=1.3),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    torch.set_num_threads(1)
    yield write_checkpoint(tmp_path_factory.mktemp("model"), hidden=64, layers=4, vocab=512)


def answers(checkpoint: Path, switch: str, params: list[SamplingParams]) -> list[list[Completion]]:
    """Twice the same prompts, together; the second time they are resumed."""
    with LLM(str(checkpoint), **FLAGS, async_scheduling=switch) as llm:
        told = [llm.generate(PROMPTS, params) for _ in range(2)]
        assert not llm.stats().leases and not llm.stats().running
        return told


def test_answers_are_those_of_steps_one_after_the_other(checkpoint: Path) -> None:
    off, on = (answers(checkpoint, switch, PARAMS) for switch in ("off", "on"))
    for one, other in zip(off, on, strict=True):
        assert [c.token_ids for c in one] == [c.token_ids for c in other]
        assert [len(c.logprobs) for c in other] == [0, 0, 0, 20, 0] and len(other[3].prompt_logprobs) == 189
    assert on[1][4].outcome.cached >= 192


def test_an_answer_that_a_token_ends_has_not_one_token_more(checkpoint: Path) -> None:
    whole = answers(checkpoint, "off", PARAMS)[0]
    stops = [SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=c.token_ids[7:8]) for c in whole[:1]]
    (first,) = whole[:1]
    end = first.token_ids.index(first.token_ids[7]) + 1
    with LLM(str(checkpoint), **FLAGS, async_scheduling="on") as llm:
        (stopped,) = llm.generate(PROMPTS[:1], stops)
        stats = llm.stats()
    assert stopped.token_ids == first.token_ids[:end] and stopped.finish_reason == "stop"
    assert stats.sampled_tokens == end + 1, "the token after the last was on its way"


def test_a_stream_that_is_closed_leaves_nothing_behind(checkpoint: Path) -> None:
    with LLM(str(checkpoint), **FLAGS, async_scheduling="on") as llm:
        stream = llm.stream(PROMPTS[1], SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        stream.close()
        stats = llm.stats()
        assert not (stats.running or stats.leases)
        assert llm.generate(PROMPTS[1], PARAMS[0])[0].token_ids


@pytest.mark.parametrize("switch", ["off", "on"])
def test_an_answer_whose_state_breaks_ends_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """Amid decodes in which nothing happens but a token each."""
    whole = answers(checkpoint, "off", PARAMS[:1] * 5)[0]
    launch = TorchRunner.launch

    def breaking(self: TorchRunner, step: Step) -> Pass:
        decodes = step.decodes
        for name, slot, index in zip(decodes.names, decodes.slots.tolist(), decodes.indices.tolist(), strict=True):
            if (name, index) == ("r1", 6):
                self._live.recurrent[:, slot] = float("nan")
        return launch(self, step)

    monkeypatch.setattr(TorchRunner, "launch", breaking)
    said: dict[str, list[int]] = {f"r{i}": [] for i in range(4)}
    ended: dict[str, str] = {}
    with LLM(str(checkpoint), **FLAGS, async_scheduling=switch) as llm:
        loop = llm._open_loop()
        for name, prompt in zip(said, PROMPTS[:4], strict=True):
            loop.submit(Request(name, prompt, PARAMS[0]))
        while len(ended) < 4:
            for event in loop.step():
                if isinstance(event, Tokens):
                    said[event.request_id] += event.tokens
                elif isinstance(event, Finished):
                    ended[event.request_id] = event.reason
        assert not llm.stats().leases and not llm.stats().running
    assert ended == {"r0": "length", "r1": "error", "r2": "length", "r3": "length"}
    for i, name in enumerate(said):
        assert tuple(said[name]) == whole[i].token_ids[: 6 if i == 1 else None]
