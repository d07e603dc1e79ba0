"""Hints on their way from a front end to a loop and back, and before a real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepwell.cache.hints import Status
from stepwell.engine.llm import LLM
from stepwell.engine.process import messages
from stepwell.engine.process.hints import fetched, take_hint
from stepwell.sched.request import SamplingParams
from stepwell.sched.retention import Prefetched, Subject
from stepwell.store.disk.catalogue import DiskCatalogue
from tests.engine.scripted import ScriptedLoop

PROMPT = np.arange(9, dtype=np.int32)


def passed(command: messages.Command) -> messages.Command:
    """What arrives."""
    return messages.decode_command(messages.encode(command))


def test_each_hint_is_answered_under_its_number() -> None:
    loop = ScriptedLoop()
    prompt = messages.about(Subject("", PROMPT))
    asked: list[tuple[messages.Command, messages.Answer]] = [
        (messages.Pin(1, prompt, 5.0), messages.Pinned(1, 9)),
        (messages.Pin(3, prompt, None), messages.Pinned(3, 9)),
        (messages.Prefetch(5, prompt), messages.Fetched(5, Prefetched(5, Status.RESIDENT))),
    ]
    for hint, expected in asked:
        arrived = passed(hint)
        assert isinstance(arrived, messages.Pin | messages.Prefetch)
        (answer,) = take_hint(loop, arrived)
        assert messages.decode_answer(messages.encode(answer)) == expected
    assert not fetched(loop)


def test_a_prefetched_prompt_gives_the_same_answer_from_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from stepwell.testing.checkpoint import write_checkpoint

    torch.set_num_threads(1)
    model = write_checkpoint(tmp_path / "model", hidden=64, layers=4, vocab=512)
    flags = {"device": "cpu", "dtype": "float32", "device_memory": "1536KiB", "host_memory": "16MiB", "max_num_seqs": 2}
    rng, six = np.random.default_rng(0), SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [rng.integers(3, 512, 150).astype(np.int32) for _ in range(6)]
    disk = f"{tmp_path / 'disk'}:64MiB"
    with LLM(str(model), **flags, disk_cache=disk, max_num_batched_tokens=128) as llm:
        cold = [llm.generate(prompt, six)[0] for prompt in prompts]
        done = llm.prefetch(prompts[0])
        assert done.status == Status.LOADED and done.host + done.disk > 0, done
        again = llm.generate(prompts[0], six)[0]
        assert again.token_ids == cold[0].token_ids
        assert again.outcome.device == done.tokens == 128 and not again.outcome.loaded
        assert llm.pin(prompts[0], 60.0) == 128
        for prompt in prompts[1:5]:
            llm.generate(prompt, six, session="s")
        assert llm.generate(prompts[0], six)[0].outcome.device == 128
        assert llm.stats().pins == 1
        assert llm.unpin(prompts[0]) == 128
    with LLM(str(model), **flags, disk_cache=disk, max_num_batched_tokens=128) as llm:
        done = llm.prefetch(prompts[3])
        assert done.disk == done.tokens == 128, done
        again = llm.generate(prompts[3], six)[0]
        assert again.token_ids == cold[3].token_ids and again.outcome.device == 128
    with LLM(str(model), **flags, disk_cache=disk, max_num_batched_tokens=128) as llm:
        compacting = iter([False] * 3)
        monkeypatch.setattr(DiskCatalogue, "hold", lambda self, seconds=0.0: next(compacting, True))
        monkeypatch.setattr(DiskCatalogue, "let_go", lambda self: None)
        assert llm.pin(prompts[3], 60.0) == 128, "what the disk holds counts"
