"""Models without recurrent layers through the whole engine: their rungs have no bytes, and nothing else about them is special."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepwell import LLM, SamplingParams
from stepwell.testing.checkpoint import write_checkpoint
from tests.engine.disk import Engine

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
RNG = np.random.default_rng(4)
PROMPT = RNG.integers(3, 512, 600).tolist()
FORK = PROMPT[:560] + RNG.integers(3, 512, 60).tolist()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("llama"), arch="llama", hidden=64, layers=2, vocab=512))


def test_prompts_that_part_anywhere_share_what_they_can(llama: str) -> None:
    with LLM(llama, dtype="float32", device_memory="8MiB", host_memory=0) as llm:
        cold = [llm.generate(prompt, GREEDY)[0] for prompt in (FORK, PROMPT, FORK)]
        assert [one.admitted.device for one in cold if one.admitted is not None] == [0, 512, 576]
        assert cold[0].token_ids == cold[2].token_ids
    with LLM(llama, dtype="float32", device_memory="8MiB", host_memory=0, enable_prefix_caching=False) as llm:
        assert [llm.generate(prompt, GREEDY)[0].token_ids for prompt in (FORK, PROMPT)] == [
            c.token_ids for c in cold[:2]
        ]


def test_its_cache_outlives_the_engine(llama: str, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with Engine.of(Path(llama), tmp_path, dtype="float32") as engine:
            found.append(engine.ask(PROMPT))
            engine.settle()
    assert found[0].token_ids == found[1].token_ids
    assert found[1].admitted is not None and found[1].admitted.disk == 576
