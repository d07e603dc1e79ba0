"""Two processes that share a model answer as one does, whatever tier a prompt comes back from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from llguidance import LLMatcher  # noqa: E402

from stepwell.base.geometry import Ints  # noqa: E402
from stepwell.engine.llm import LLM, Completion  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402

VOCAB = 513
PROMPTS = list(np.random.default_rng(0).integers(3, VOCAB, (4, 200)).astype(np.int32))
LONG = SamplingParams(max_tokens=60, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True, logprobs=2)
HELD = SamplingParams(max_tokens=12, grammar=LLMatcher.grammar_from_regex("[ab ]+"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("model"), hidden=256, layers=4, vocab=VOCAB, mtp=True)


def engine(model: Path, ranks: int, **more: Any) -> LLM:
    """As many pages whatever the ranks: each has its part of every page."""
    return LLM(
        str(model),
        tensor_parallel_size=ranks,
        device="cpu",
        dtype="float32",
        device_memory=(5 << 18) // ranks,
        host_memory="16MiB",
        max_num_seqs=3,
        max_num_batched_tokens=128,
        max_model_len=400,
        num_speculative_tokens=1,
        **more,
    )


def conversation(llm: LLM) -> Iterator[Completion]:
    """Cold; from the device; three at once, that drive each other out; from host; drawn, and held to a grammar."""
    yield (first := llm.generate(PROMPTS[0], LONG)[0])
    further = goes_on(first)
    yield llm.generate(further, LONG)[0]
    yield from llm.generate(PROMPTS[1:4], LONG)
    yield llm.generate(further, LONG)[0]
    yield llm.generate(PROMPTS[1], DRAWN)[0]
    yield llm.generate(PROMPTS[1], HELD)[0]


def goes_on(first: Completion) -> Ints:
    """What a second turn asks."""
    return np.concatenate([PROMPTS[0], np.array(first.token_ids, np.int32), PROMPTS[1][:20]])


def test_two_ranks_answer_as_one_does_from_every_tier(model: Path, tmp_path: Path) -> None:
    with engine(model, 1) as llm:
        alone = list(conversation(llm))
    disk = f"{tmp_path / 'disk'}:64MiB"
    with engine(model, 2, disk_cache=disk) as llm:
        shared = list(conversation(llm))
        stats = llm.stats()
    assert [answer.token_ids for answer in shared] == [answer.token_ids for answer in alone]
    assert [answer.text for answer in shared] == [answer.text for answer in alone]
    assert shared[1].outcome.device >= 192 and shared[5].outcome.host >= 192
    assert shared[-1].text and not set(shared[-1].text) - set("ab ")
    assert len(stats.ranks) == 2 and all(counts["copies_done"] for counts in stats.ranks)
    assert stats.preemptions and stats.drafts and not stats.leases
    with engine(model, 2, disk_cache=disk) as llm:
        again = llm.generate(goes_on(alone[0]), LONG)[0]
    assert again.outcome.disk >= 192 and again.token_ids == alone[1].token_ids
