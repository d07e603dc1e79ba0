"""The network that is trained is the one that is served: Transformers' classes and this engine's read the same weights alike."""

from __future__ import annotations

import pytest
import torch

from stepwell.model.config import HybridConfig
from stepwell.model.names import expected
from tiny import masks
from tiny.judge import forgetting
from tiny.network import Network, Sizes

SIZES = Sizes(
    vocab=128, hidden=64, layers=4, width=96, heads=2, kv_heads=1, head_dim=32,
    key_heads=1, value_heads=2, linear_dim=32, rotary=8
)  # fmt: skip


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    made = Network(SIZES)
    for parameter in made.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def config() -> dict[str, object]:
    return SIZES.config(512, (2, 0), 0)


@torch.no_grad()
def test_logits_are_those_of_transformers(network: Network) -> None:
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    theirs = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**config(), "dtype": "float32"})).float().eval()
    weights = {k: v for k, v in network.state_dict().items() if not k.startswith("mtp.")}
    missing = theirs.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys  # it is tied to the embedding
    ids = torch.randint(0, SIZES.vocab, (2, 128))
    ours = network.logits(network.hidden(ids)[0])
    torch.testing.assert_close(ours, theirs(ids).logits, atol=1e-4, rtol=1e-4)


def test_names_and_shapes_are_the_published_ones(network: Network) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    shape = HybridConfig.from_dict(config()).shape.drafting()
    assert found == {name: tuple(size) for name, size in expected(shape, frozenset()).items()}


@torch.no_grad()
def test_what_comes_later_changes_nothing_before(network: Network) -> None:
    ids = torch.randint(0, SIZES.vocab, (1, 128))
    changed = ids.clone()
    changed[0, 100] = (ids[0, 100] + 1) % SIZES.vocab
    for one, other in zip(network.hidden(ids), network.hidden(changed), strict=True):
        torch.testing.assert_close(one[:, :100], other[:, :100])
        assert not torch.allclose(one[:, 100:], other[:, 100:])


@torch.no_grad()
def test_forgetting_and_blindness_together_cut_a_sequence_in_two(network: Network) -> None:
    """Either alone leaves a way from what stood before."""
    place = 64
    ids, other = torch.randint(0, SIZES.vocab, (2, 1, 128))
    other[:, place:] = ids[:, place:]
    blind = masks.without(128, place, torch.device("cpu"))

    def same(mask: torch.Tensor | None) -> bool:
        one, two = (network.hidden(words, mask)[0][:, place:] for words in (ids, other))
        return torch.allclose(one, two, atol=1e-4)

    assert not same(blind)
    with forgetting(network, place):
        assert same(blind) and not same(None)


def test_masks_show_each_token_itself_and_hide_what_is_later_or_out_of_the_window() -> None:
    generator = torch.Generator().manual_seed(3)
    seen = masks.drawn(256, 640, generator)[:, 0]
    assert seen.diagonal(dim1=1, dim2=2).all() and not seen.triu(1).any()
    counts = seen[:, -1].sum(-1)
    assert set(masks.WINDOWS) | {640} <= set(counts.tolist())
    gaps = ((counts > max(masks.WINDOWS) // 2) & (counts < 640)).float().mean()
    assert gaps > 0.1 and (counts == 640).float().mean() > 0.2


def test_the_model_has_between_five_and_fifteen_million_parameters() -> None:
    count = sum(p.numel() for p in Network(Sizes()).parameters())
    assert 5_000_000 < count < 15_000_000
