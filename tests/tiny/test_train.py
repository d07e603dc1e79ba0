"""The script as a whole, on a network and a corpus that are very small: what it writes, this engine serves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from stepwell import LLM, SamplingParams
from tiny import corpus, masks, train
from tiny.network import Network, Sizes
from tiny.optimiser import Optimiser, orthogonal
from tiny.train import Plan, Training, likeness

SIZES = Sizes(
    vocab=600, hidden=64, layers=4, width=64, heads=2, kv_heads=1, head_dim=32,
    key_heads=1, value_heads=2, linear_dim=32, rotary=8
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    with gzip.open(folder / "gsm8k-train.jsonl.gz", "wt") as file:
        for n in range(40):
            file.write(
                json.dumps({"question": f"How much is {n} plus 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"}) + "\n"
            )
    corpus.build(folder, folder, 20_000, vocab=600, sample=200)
    return folder


def test_the_loss_falls() -> None:
    torch.manual_seed(0)
    words = (torch.arange(4000) % 7).int() | corpus.MARKED
    training = Training(Network(SIZES), words, Plan(batch=2, tokens=64, seconds=1, rate=4e-3, seed=0))
    first = training.step(4e-3)
    *_, last = (training.step(4e-3) for _ in range(15))
    assert all(after < 0.7 * before for before, after in zip(first, last, strict=True))


def test_gradients_of_a_network_are_like_themselves_and_leave_nothing_behind() -> None:
    network = Network(SIZES)
    marked = torch.randint(0, 600, (1, 65)) | corpus.MARKED
    assert likeness(network, marked, masks.drawn(1, 64, torch.Generator().manual_seed(0))) > 0.999
    assert all(p.grad is None for p in network.parameters())


def test_the_rate_rises_stays_and_ends_at_nothing() -> None:
    plan = Plan(1, 64, 1, 2.0, 0)
    assert [plan.rate_at(s) for s in (0.0, 0.01, 0.3, 0.75, 1.0, 1.1)] == [0.0, 1.0, 2.0, 1.0, 0.0, 0.0]


def test_orthogonal_matrices_have_singular_values_near_one() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 64, 160, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.6 and values.max() < 1.3


def test_every_parameter_is_trained() -> None:
    network = Network(SIZES)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    optimiser = Optimiser(network)
    for p in network.parameters():
        p.grad = torch.randn_like(p)
    optimiser.step(1e-2)
    assert all(not torch.equal(before[name], p) for name, p in network.named_parameters())


@pytest.mark.long
def test_what_is_written_is_served_with_its_drafts(made: Path, tmp_path: Path) -> None:
    plan = Plan(batch=1, tokens=64, seconds=0.0, rate=1e-3, seed=0)
    figures = train.run(plan, made, tmp_path, small=True, compiled=False)
    assert figures.keys() == {"loss", "zero_state", "zero_kv", "acceptance", "accuracy", "tokens_per_s"}
    assert 0 < figures["loss"] < 20
    answers = []
    for drafts in (0, 2):
        with LLM(
            str(tmp_path), num_speculative_tokens=drafts, dtype="float32", device_memory="16MiB", host_memory=0
        ) as llm:
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            answers.append(llm.chat([{"role": "user", "content": "Hello!"}], params).token_ids)
    assert answers[0] == answers[1]


def test_the_same_seed_makes_the_same_corpus(made: Path, tmp_path: Path) -> None:
    corpus.build(made, tmp_path, 20_000, vocab=600, sample=200)
    for name in ("train.xz", "held.xz", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()
    assert len(corpus.load(made / "train.xz")) == 20_000
    assert corpus.load(made / "held.xz")[0] & (corpus.MARKED - 1) == 0
