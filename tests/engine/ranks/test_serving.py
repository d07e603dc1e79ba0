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
KV_HEADS = 2
PROMPTS = list(np.random.default_rng(0).integers(3, VOCAB, (4, 200)).astype(np.int32))
LONG = SamplingParams(max_tokens=60, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True, logprobs=2)
HELD = SamplingParams(max_tokens=12, grammar=LLMatcher.grammar_from_regex("[ab ]+"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("model"), hidden=256, layers=4, vocab=VOCAB, mtp=True)


def engine(model: Path, ranks: int, kv_heads: int = KV_HEADS, **more: Any) -> LLM:
    """As many pages whatever the ranks: each has its part of every page, two ranks of four the same part."""
    given = {"num_speculative_tokens": 1, "device_memory": 5 << 18, **more}
    return LLM(
        str(model),
        tensor_parallel_size=ranks,
        device="cpu",
        dtype="float32",
        host_memory="16MiB",
        max_num_seqs=3,
        max_num_batched_tokens=128,
        max_model_len=400,
        **{**given, "device_memory": given["device_memory"] // min(ranks, kv_heads)},
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


ARCHS = (
    "qwen3_5", "qwen3_next", "qwen3_next moe", "qwen3_5_moe moe", "qwen3", "qwen3_moe moe", "llama", "kimi_linear moe"
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", ["qwen3_5_moe moe", "llama"])
def test_two_ranks_of_other_architectures_give_the_same_tokens(name: str, tmp_path: Path) -> None:
    assert_same_tokens(name, tmp_path, ranks=(2,))


@pytest.mark.long
@pytest.mark.by_hand
@pytest.mark.parametrize("name", ARCHS)
def test_one_two_and_four_ranks_give_the_same_tokens(name: str, tmp_path: Path) -> None:
    assert_same_tokens(name, tmp_path, ranks=(2, 4))


def assert_same_tokens(name: str, tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """Cold, from each tier, after a preemption and after a restart; with drafts where the architecture has a layer for them."""
    torch.set_num_threads(1)
    arch, _, experts = name.partition(" ")
    hybrid = arch not in ("qwen3", "qwen3_moe", "llama")
    drafts = hybrid and arch != "kimi_linear"
    made: Any = {"arch": arch, "experts": 4 if experts else 0, "mtp": drafts}
    model = write_checkpoint(tmp_path / "model", hidden=256, layers=4, vocab=VOCAB, **made)
    # where no layer is recurrent, pages are of four layers, not of one, and no images are among them; latents are small, and on every rank
    memory = 5 << 18 if drafts else 7 << 18
    more: Any = {"num_speculative_tokens": int(drafts), "device_memory": memory}
    if hybrid and not drafts:
        more |= {"device_memory": 48 * 2560, "kv_heads": 1}
    with engine(model, 1, **more) as llm:
        alone = list(conversation(llm))
    for count in ranks:
        disk = f"{tmp_path / f'disk-{count}'}:64MiB"
        with engine(model, count, disk_cache=disk, **more) as llm:
            shared = list(conversation(llm))
            stats = llm.stats()
        assert [answer.token_ids for answer in shared] == [answer.token_ids for answer in alone]
        assert shared[1].outcome.device >= 192 and shared[5].outcome.host >= 192
        assert len(stats.ranks) == count and bool(stats.drafts) == drafts and not stats.leases
        assert stats.preemptions or (count == 4 and not drafts)  # a rank's part of an image takes few pages then
        if count == 2 or name == ARCHS[0]:
            with engine(model, count, disk_cache=disk, **more) as llm:
                again = llm.generate(goes_on(alone[0]), LONG)[0]
            assert again.outcome.disk >= 192 and again.token_ids == alone[1].token_ids
