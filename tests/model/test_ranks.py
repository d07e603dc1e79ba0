"""Several ranks, each with its part of the weights, compute what one computes with all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.model import checkpoint as checkpoints  # noqa: E402
from stepwell.model import names, safetensors_file  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.decoder import HybridDecoder  # noqa: E402
from stepwell.model.loading import dummy_decoder, load_decoder  # noqa: E402
from stepwell.model.shares import share  # noqa: E402
from stepwell.ops.ranks import Ranks  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.ranks import on_ranks  # noqa: E402

ARCHS = ("qwen3_5", "qwen3_next", "qwen3_next moe", "qwen3_5_moe moe", "qwen3_moe moe", "llama", "kimi_linear moe")
VOCAB = 513  # does not divide: the last rank's rows are filled up
TOKENS = np.random.default_rng(3).integers(3, VOCAB, 70).astype(np.int32)
ANSWER = 6


def written(directory: Path, name: str = "qwen3_5", **more: Any) -> Path:
    arch, _, experts = name.partition(" ")
    made: Any = {"arch": arch, "experts": 4 if experts else 0}
    return write_checkpoint(directory, hidden=256, layers=4, vocab=VOCAB, **{**made, **more})


def answer(load: Callable[[Ranks], HybridDecoder], ranks: int) -> list[tuple[list[int], Any]]:
    """Each rank's greedy answer, and the logits of its last token."""

    def one(own: Ranks) -> tuple[list[int], Any]:
        rig = Rig(load(own), pages=12, slots=1)
        pages = rig.table(len(TOKENS) + ANSWER)
        logits = rig.last(work(TOKENS, pages, 0, len(TOKENS)))
        found = [int(logits.argmax())]
        while len(found) < ANSWER:
            every = np.append(TOKENS, found).astype(np.int32)
            logits = rig.last(work(every, pages, len(every) - 1, len(every)))
            found.append(int(logits.argmax()))
        return found, logits

    return on_ranks(ranks, one)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ARCHS)
def test_ranks_answer_as_one_does(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    directory = written(tmp_path / "model", name)
    ((alone, logits),) = answer(lambda own: load_decoder(directory, ranks=own), 1)
    for ranks in (2, 4):  # four have two key-value heads among them
        for tokens, last in answer(lambda own: load_decoder(directory, ranks=own), ranks):
            assert tokens == alone
            assert last.shape == logits.shape
            assert torch.allclose(last, logits, atol=2e-4 * float(logits.abs().max()))


# ---- what a rank holds -----------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_parts_of_all_ranks_are_the_whole(name: str, ranks: int, tmp_path: Path) -> None:
    shape = HybridConfig.from_file(written(tmp_path / "model", name, mtp=True)).shape.drafting()
    fused = frozenset(names.layer_prefixes(shape)[:1])
    for tensor, size in names.expected(shape, fused).items():
        cuts = [share(tensor, shape, rank, ranks) for rank in range(ranks)]
        if cuts[0] is None:
            assert cuts == [None] * ranks
            narrow = tensor.endswith("_a_proj.weight")  # of two matrices in place of one: the other is cut
            assert narrow or not tensor.endswith(("_proj.weight", "_proj", "conv1d.weight", "A_log", "dt_bias"))
            continue
        held = np.zeros(size[cuts[0].axis], np.int64)
        for cut in cuts:
            assert cut is not None and cut.axis == cuts[0].axis
            for start, end in cut.spans:
                held[start:end] += 1
        heads_twice = tensor.endswith(("k_proj.weight", "v_proj.weight")) and shape.latent is None
        assert (held == (max(1, ranks // shape.kv_heads) if heads_twice else 1)).all(), tensor


@pytest.mark.parametrize("shortest", [1, 64 << 10], ids=["rows apart", "cut out"])
def test_a_rank_reads_its_part_alone(shortest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "_SHORTEST", shortest)
    monkeypatch.setattr(safetensors_file, "PIECE", 3000)  # pieces that begin within a run
    directory = written(tmp_path / "model", "qwen3_next moe")
    whole = load_file(directory / "model.safetensors")
    shape = HybridConfig.from_file(directory).shape
    with checkpoints.Checkpoint(directory) as opened:
        cuts = {name: cut for name in whole if (cut := share(name, shape, 1, 2)) is not None}
        opened.share(cuts)
        for name, tensor in whole.items():
            assert torch.equal(opened.tensor(name), cuts[name].of(tensor) if name in cuts else tensor), name


def test_progress_counts_what_a_rank_reads(tmp_path: Path) -> None:
    directory, told = written(tmp_path / "model"), []
    for own in on_ranks(2, lambda own: own):
        heard: list[tuple[int, int]] = []
        load_decoder(directory, ranks=own, progress=lambda *counts, heard=heard: heard.append(counts))
        assert heard[-1][0] == heard[-1][1]
        told.append(heard[-1][1])
    embedding = VOCAB * 256 * 4
    stored = sum(tensor.nbytes for tensor in load_file(directory / "model.safetensors").values())
    assert embedding < told[1] < 0.51 * (stored - embedding) + embedding


def test_dummy_weights_are_those_of_one_rank_in_parts(tmp_path: Path) -> None:
    directory = written(tmp_path / "model", "qwen3_5_moe moe")
    ((alone, logits),) = answer(lambda own: dummy_decoder(directory, ranks=own), 1)
    for tokens, last in answer(lambda own: dummy_decoder(directory, ranks=own), 2):
        assert tokens == alone
        assert torch.allclose(last, logits, atol=2e-4 * float(logits.abs().max()))


def test_ranks_share_a_head_that_is_the_embedding(tmp_path: Path) -> None:
    directory = written(tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    ((alone, _),) = answer(lambda own: load_decoder(directory, ranks=own), 1)
    assert all(tokens == alone for tokens, _ in answer(lambda own: load_decoder(directory, ranks=own), 4))


def test_fp8_is_cut_between_blocks_and_nowhere_else(tmp_path: Path) -> None:
    directory = written(tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())

    def blocks(size: int) -> Path:
        stored = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [size, size]}
        (directory / "config.json").write_text(json.dumps({**config, "quantization_config": stored}))
        return directory

    ((alone, logits),) = answer(lambda own: dummy_decoder(blocks(64), ranks=own), 1)
    for tokens, last in answer(lambda own: dummy_decoder(blocks(64), ranks=own), 2):
        assert tokens == alone
        assert torch.allclose(last, logits, atol=2e-4 * float(logits.abs().max()))
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size cuts .*within blocks of 128 × 128.*fewer ranks"):
        on_ranks(4, lambda own: dummy_decoder(blocks(128), ranks=own))


@pytest.mark.parametrize("ranks", [3, 8])
def test_ranks_that_do_not_divide_the_model_are_refused(ranks: int, tmp_path: Path) -> None:
    config = HybridConfig.from_file(written(tmp_path / "model"))
    with pytest.raises(ConfigError, match=f"--tensor-parallel-size {ranks} must divide num_attention_heads = 4"):
        config.shard(ranks)
