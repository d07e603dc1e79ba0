"""The causal convolution against the plain sum, its state in and out, and single tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.conv import causal_conv, conv_update  # noqa: E402

TAPS, CHANNELS = 4, 6
RNG = torch.Generator().manual_seed(0)
X, WEIGHT, STATE = (torch.randn(n, CHANNELS, generator=RNG) for n in (50, TAPS, TAPS - 1))


def expected(count: int) -> torch.Tensor:
    seen = torch.cat((STATE, X[:count]))
    rows = [(seen[t : t + TAPS] * WEIGHT).sum(0) for t in range(count)]
    return torch.nn.functional.silu(torch.stack(rows))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 50])
def test_a_sequence_equals_the_sum_over_its_taps(count: int) -> None:
    out, state, _ = causal_conv(X[:count], WEIGHT, STATE, ())
    assert torch.allclose(out, expected(count), atol=1e-6)
    assert torch.equal(state, torch.cat((STATE, X[:count]))[-(TAPS - 1) :])


@pytest.mark.parametrize("cut", [1, 2, 3, 16, 49, 50])
def test_a_resume_at_a_cut_equals_the_whole(cut: int) -> None:
    whole, last, (state,) = causal_conv(X, WEIGHT, STATE, (cut,))
    if cut == 50:
        assert torch.equal(state, last)
        return
    rest, end, _ = causal_conv(X[cut:], WEIGHT, state, ())
    assert torch.allclose(rest, whole[cut:], atol=1e-6)
    assert torch.equal(end, last)


def test_updates_equal_the_sequence() -> None:
    states = torch.stack((STATE, STATE * 2))
    for t in range(6):
        out = conv_update(X[t].expand(2, -1), WEIGHT, states)
        assert torch.allclose(out[0], expected(6)[t], atol=1e-6)
    assert torch.equal(states[0], X[3:6])


def test_bfloat16_inputs_keep_their_type_in_the_state() -> None:
    out, state, _ = causal_conv(X.bfloat16(), WEIGHT, STATE.bfloat16(), ())
    assert (out.dtype, state.dtype) == (torch.float32, torch.bfloat16)
    assert torch.allclose(out, expected(50), atol=0.1)
