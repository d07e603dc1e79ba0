"""Random weights of a config's shape: the state decides the answer, and experts are drawn evenly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.model import torch_forward  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402

ROWS, LENGTH, VOCAB, EXPERTS, TOP = 64, 80, 2048, 256, 8


def config(directory: Path, **more: Any) -> Path:
    """A config.json of a small shape, and nothing beside it."""
    text = {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "intermediate_size": 256,
        "dtype": "float32",
        **more,
    }
    (directory / "config.json").write_text(json.dumps(text))
    return directory


class Filled:
    """64 sequences of random tokens, each with its state, and the one step that comes next."""

    def __init__(self, decoder: Any) -> None:
        torch.set_num_threads(1)
        self.rig = Rig(decoder, pages=ROWS * 6, slots=ROWS)
        self.tokens = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
        self.tables = [self.rig.table(LENGTH + 1) for _ in range(ROWS)]
        self.rig.run(*(work(self.tokens[slot], self.tables[slot], 0, LENGTH, slot=slot) for slot in range(ROWS)))

    def answers(self) -> np.ndarray:
        """The token that each sequence chooses."""
        self.rig.live.committed.fill_(-1)  # states are put back from outside
        works = [work(self.tokens[slot], self.tables[slot], LENGTH, LENGTH + 1, slot=slot) for slot in range(ROWS)]
        return np.array([tokens[0] for tokens in self.rig.run(*works)[0].sampled])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tied", [False, True])
def test_without_its_state_a_sequence_answers_otherwise(tmp_path: Path, tied: bool) -> None:
    filled = Filled(dummy_decoder(config(tmp_path, tie_word_embeddings=tied)))
    kept = [t.clone() for t in (filled.rig.live.recurrent, filled.rig.live.conv)]
    right = filled.answers()
    assert len(set(right)) > ROWS // 2
    assert np.mean(right == filled.tokens[:, LENGTH]) < 0.05  # none simply says its last token again
    for part in range(2):
        filled.rig.live.recurrent.copy_(kept[0])
        filled.rig.live.conv.copy_(kept[1])
        (filled.rig.live.recurrent, filled.rig.live.conv)[part].zero_()
        assert np.mean(filled.answers() != right) >= 0.95


def test_experts_are_drawn_as_evenly_as_chance_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = {"num_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": 16}
    shape = config(tmp_path, model_type="qwen3_5_moe_text", shared_expert_intermediate_size=16, **experts)
    filled = Filled(dummy_decoder(shape))
    chosen: list[Any] = []

    def watched(*arguments: Any, route: Any = torch_forward.route) -> Any:
        answer = route(*arguments)
        chosen.append(answer[1])
        return answer

    monkeypatch.setattr(torch_forward, "route", watched)
    filled.answers()
    assert len(chosen) == 8
    for rows in (8, ROWS):
        counts = [part.unique().numel() for layer in chosen for part in layer.split(rows)]
        uniform = EXPERTS * (1 - (1 - TOP / EXPERTS) ** rows)  # 57 and 222
        assert np.mean(counts) >= 0.95 * uniform


def test_the_seed_decides_every_weight(tmp_path: Path) -> None:
    def logits(seed: int) -> Any:
        rig = Rig(dummy_decoder(shape, seed=seed), pages=2, slots=1)
        return rig.last(work(np.arange(10, dtype=np.int32), rig.table(10), 0, 10))

    shape = config(tmp_path)
    assert torch.equal(logits(1), logits(1))
    assert not torch.allclose(logits(1), logits(2), atol=0.1)
