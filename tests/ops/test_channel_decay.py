"""The delta rule where each channel of a key decays by itself, against the rule as it is written down."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.delta_rule import DeltaInputs, delta_update  # noqa: E402
from stepwell.ops.pending import Lanes, Ring, delta_step  # noqa: E402
from tests.ops.test_delta_rule import (  # noqa: E402
    KEY_DIM,
    KEY_HEADS,
    VALUE_DIM,
    VALUE_HEADS,
    fold,
    inputs,
    part,
    several,
    start_state,
)


def by_channel(count: int, strength: float = 0.2) -> DeltaInputs:
    g = torch.rand(count, VALUE_HEADS, KEY_DIM, generator=torch.Generator().manual_seed(3))
    return replace(inputs(count), g=-strength * g)


def token_by_token(x: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs, and the state after each token, in float64."""
    share = VALUE_HEADS // KEY_HEADS
    q, k = ((y.double() / y.double().norm(dim=-1, keepdim=True)).repeat_interleave(share, 1) for y in (x.q, x.k))
    state, outputs, states = state.double(), [], []
    for t in range(len(q)):
        state = state * x.g[t].double().exp()[:, :, None]
        delta = (x.v[t].double() - torch.einsum("hkv,hk->hv", state, k[t])) * x.beta[t].double()[:, None]
        state = state + k[t][:, :, None] * delta[:, None, :]
        outputs.append(torch.einsum("hkv,hk->hv", state, q[t]) / KEY_DIM**0.5)
        states.append(state.float())
    return torch.stack(outputs).float(), states


@pytest.mark.parametrize("strength", [0.0, 0.2, 3.0, 200.0])
@pytest.mark.parametrize("start", [0, 17])
def test_chunks_equal_tokens_however_fast_channels_decay(start: int, strength: float) -> None:
    """At 200 a token nothing of e^−g and little of e^g is a number: sums of 64 tokens reach 6,000."""
    x, state, cuts = by_channel(140, strength), start_state(), (1, 15, 16, 17, 80, 140)
    out, last, found = fold(x, state, start, cuts)
    expected, states = token_by_token(x, state)
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(last, states[-1], atol=1e-5)
    for cut, rung in zip(cuts, found, strict=True):
        assert torch.allclose(rung, states[cut - 1], atol=1e-5)


def test_one_rate_for_all_channels_is_the_decay_of_a_head() -> None:
    x, state = inputs(100), start_state()
    spread = replace(x, g=x.g.unsqueeze(-1).expand(-1, -1, KEY_DIM))
    for one, other in zip(fold(x, state, 5, (50,)), fold(spread, state, 5, (50,)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_cuts_and_splits_on_the_grid_change_not_a_bit() -> None:
    x, state = by_channel(192), start_state()
    plain, cut = fold(x, state, 64, ()), fold(x, state, 64, (64, 128))
    assert torch.equal(plain[0], cut[0]) and torch.equal(plain[1], cut[1])
    first, middle, _ = fold(part(x, 0, 64), state, 64, ())
    second, end, _ = fold(part(x, 64, 192), middle, 128, ())
    assert torch.equal(torch.cat((first, second)), plain[0]) and torch.equal(end, plain[1])


def test_sequences_side_by_side_equal_each_alone_to_the_bit() -> None:
    starts, counts = [0, 17, 64], [1, 140, 64]
    x, states = by_channel(sum(counts)), torch.stack([start_state() * (i + 1) for i in range(3)])
    out, last, _ = several(x, states, starts, counts, [])
    first = 0
    for i, count in enumerate(counts):
        alone = fold(part(x, first, first + count), states[i], starts[i], ())
        assert torch.equal(out[first : first + count], alone[0]) and torch.equal(last[i], alone[1])
        first += count


def test_single_tokens_and_kept_inputs_equal_the_rule() -> None:
    x, state = by_channel(6), start_state()
    expected, states = token_by_token(x, state)
    now = state[None].clone()
    stepped = [delta_update(part(x, t, t + 1), now)[0] for t in range(6)]
    assert torch.allclose(torch.stack(stepped), expected, atol=1e-5) and torch.allclose(now[0], states[-1], atol=1e-5)

    ring = Ring.empty(1, 6, KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM, torch.device("cpu"), decays=KEY_DIM)
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (x.q, x.k))
    for kept, given in ((ring.q, q), (ring.k, k), (ring.v, x.v), (ring.g, x.g), (ring.beta, x.beta)):
        kept[0] = given
    one, pool, out = torch.tensor([0]), state[None].clone(), torch.empty(2, VALUE_HEADS, VALUE_DIM)
    rungs, lanes = torch.empty(1, *state.shape), Lanes(one, one, one + 4, one, one + 3)
    delta_step(pool, rungs, lanes, one, ring, out, fold_new=False)
    assert torch.allclose(out, expected[4:], atol=1e-5)
    assert torch.allclose(pool[0], states[3], atol=1e-5) and torch.allclose(rungs[0], states[2], atol=1e-5)
