"""The causal convolution against the plain sum, its states in and out, several sequences, and single tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.conv import ConvLayout, causal_conv, conv_update  # noqa: E402

TAPS, CHANNELS = 4, 32  # whole vectors of any CPU: elements of a part of one may round otherwise
RNG = torch.Generator().manual_seed(0)
X, WEIGHT, STATE = (torch.randn(n, CHANNELS, generator=RNG) for n in (50, TAPS, TAPS - 1))


def convolve(x: torch.Tensor, state: torch.Tensor, *cuts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One sequence: activations, the state after it, the states at its cuts."""
    layout = ConvLayout.plan([len(x)], [(0, cut) for cut in cuts], TAPS, torch.device("cpu"))
    out, ends, at_cuts = causal_conv(x, WEIGHT, state[None], layout)
    return out, ends[0], at_cuts


def expected(count: int) -> torch.Tensor:
    seen = torch.cat((STATE, X[:count]))
    rows = [(seen[t : t + TAPS] * WEIGHT).sum(0) for t in range(count)]
    return torch.nn.functional.silu(torch.stack(rows))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 50])
def test_a_sequence_equals_the_sum_over_its_taps(count: int) -> None:
    out, state, _ = convolve(X[:count], STATE)
    assert torch.allclose(out, expected(count), atol=1e-6)
    assert torch.equal(state, torch.cat((STATE, X[:count]))[-(TAPS - 1) :])


@pytest.mark.parametrize("cut", [1, 2, 3, 16, 49, 50])
def test_a_resume_at_a_cut_equals_the_whole(cut: int) -> None:
    whole, last, (state,) = convolve(X, STATE, cut)
    if cut == 50:
        assert torch.equal(state, last)
        return
    rest, end, _ = convolve(X[cut:], state)
    assert torch.allclose(rest, whole[cut:], atol=1e-6)
    assert torch.equal(end, last)


def test_sequences_side_by_side_equal_each_alone_to_the_bit() -> None:
    counts, cuts = (1, 30, 2, 17), ((1, 16), (1, 30), (3, 3))
    states = torch.randn(4, TAPS - 1, CHANNELS, generator=RNG)
    layout = ConvLayout.plan(counts, cuts, TAPS, torch.device("cpu"))
    out, ends, at_cuts = causal_conv(X, WEIGHT, states, layout)
    alone = [
        convolve(x, state, *(after for s, after in cuts if s == i))
        for i, (x, state) in enumerate(zip(X.split(counts), states, strict=True))
    ]
    assert torch.equal(out, torch.cat([one[0] for one in alone]))
    assert torch.equal(ends, torch.stack([one[1] for one in alone]))
    assert torch.equal(at_cuts, torch.cat([one[2] for one in alone]))


def test_updates_equal_the_sequence() -> None:
    states = torch.stack((STATE, STATE * 2))
    for t in range(6):
        out = conv_update(X[t].expand(2, -1), WEIGHT, states)
        assert torch.allclose(out[0], expected(6)[t], atol=1e-6)
    assert torch.equal(states[0], X[3:6])


def test_bfloat16_inputs_keep_their_type_in_the_state() -> None:
    out, state, _ = convolve(X.bfloat16(), STATE.bfloat16())
    assert (out.dtype, state.dtype) == (torch.float32, torch.bfloat16)
    assert torch.allclose(out, expected(50), atol=0.1)
