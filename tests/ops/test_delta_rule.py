"""The delta rule in chunks against one token at a time, with cuts anywhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.chunks import Chunks, chunk_ends  # noqa: E402
from stepwell.ops.delta_rule import DeltaInputs, delta_rule, delta_update  # noqa: E402

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 6, 16, 8


def inputs(count: int, seed: int = 0) -> DeltaInputs:
    rng = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(count, KEY_HEADS, KEY_DIM, generator=rng) for _ in "qk")
    v = torch.randn(count, VALUE_HEADS, VALUE_DIM, generator=rng)
    g, beta = (torch.rand(count, VALUE_HEADS, generator=rng) for _ in "gb")
    return DeltaInputs(q, k, v, -0.2 * g, beta)


def part(x: DeltaInputs, a: int, b: int) -> DeltaInputs:
    return DeltaInputs(x.q[a:b], x.k[a:b], x.v[a:b], x.g[a:b], x.beta[a:b])


def start_state() -> torch.Tensor:
    return torch.randn(VALUE_HEADS, KEY_DIM, VALUE_DIM, generator=torch.Generator().manual_seed(9))


def several(
    x: DeltaInputs, states: torch.Tensor, starts: list[int], counts: list[int], cuts: list[tuple[int, int]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, the states after the sequences, the states at the cuts."""
    chunks = Chunks.plan(starts, counts, cuts, VALUE_HEADS, torch.device("cpu"))
    rungs = torch.full((len(cuts), *states.shape[1:]), float("nan"))
    return *delta_rule(x, states, chunks, rungs), rungs


def fold(x: DeltaInputs, state: torch.Tensor, start: int, cuts: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The same of one sequence."""
    out, last, rungs = several(x, state[None], [start], [len(x.q)], [(0, cut) for cut in cuts])
    return out, last[0], rungs


def token_by_token(x: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs, and the state after each token, by the rule as it is written down."""
    norm = lambda y: y / y.norm(dim=-1, keepdim=True)  # noqa: E731
    share = VALUE_HEADS // KEY_HEADS
    q, k = (norm(y.double()).repeat_interleave(share, 1) for y in (x.q, x.k))
    state, outputs, states = state.double(), [], []
    for t in range(len(q)):
        state = state * x.g[t].double().exp()[:, None, None]
        held = torch.einsum("hkv,hk->hv", state, k[t])
        delta = (x.v[t].double() - held) * x.beta[t].double()[:, None]
        state = state + k[t][:, :, None] * delta[:, None, :]
        outputs.append(torch.einsum("hkv,hk->hv", state, q[t]) / KEY_DIM**0.5)
        states.append(state.float())
    return torch.stack(outputs).float(), states


@pytest.mark.parametrize("start", [0, 64, 17])
@pytest.mark.parametrize(
    ("count", "cuts"),
    [(1, ()), (5, (1, 5)), (64, (64,)), (130, (64, 128)), (130, (16, 80, 81)), (192, ()), (1500, (64, 1400, 1500))],
)
def test_chunks_equal_tokens_at_the_end_and_at_every_cut(start: int, count: int, cuts: tuple[int, ...]) -> None:
    x, state = inputs(count), start_state()
    kept = state.clone()
    out, last, at_cuts = fold(x, state, start, cuts)
    expected, states = token_by_token(x, state)
    assert torch.equal(state, kept)
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(last, states[-1], atol=1e-5)
    assert len(at_cuts) == len(cuts)
    for cut, found in zip(cuts, at_cuts, strict=True):
        assert torch.allclose(found, states[cut - 1], atol=1e-5)


def test_every_cut_of_every_start_is_the_state_there() -> None:
    x, state = inputs(100), start_state()
    _, states = token_by_token(x, state)
    for start in (0, 1, 16, 17, 36, 48, 63):
        for cut in range(1, 101):
            _, last, (found,) = fold(x, state, start, (cut,))
            assert torch.allclose(found, states[cut - 1], atol=1e-5)
            assert torch.allclose(last, states[-1], atol=1e-5)


def test_cuts_on_the_grid_change_not_a_bit() -> None:
    x, state = inputs(200), start_state()
    plain, cut = fold(x, state, 64, ()), fold(x, state, 64, (64, 192))
    assert torch.equal(plain[0], cut[0])
    assert torch.equal(plain[1], cut[1])


def test_a_split_on_the_grid_has_the_same_chunks() -> None:
    x, state = inputs(300), start_state()
    out, last, _ = fold(x, state, 40, ())
    # position 168 is not on the grid of the first call's tokens, but 128 is on that of positions
    first, middle, _ = fold(part(x, 0, 88), state, 40, ())
    second, end, _ = fold(part(x, 88, 300), middle, 128, ())
    assert torch.allclose(torch.cat((first, second)), out, atol=1e-6)
    assert torch.allclose(end, last, atol=1e-6)


@pytest.mark.parametrize("many", [False, True])
def test_sequences_side_by_side_equal_each_alone_to_the_bit(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.ops.chunks._AT_ONCE_CPU", 4096 if many else 24)  # all waves at once, or one or two
    starts, counts = [0, 17, 64, 0, 128], [1, 200, 64, 130, 64]
    cuts = [(1, 47), (1, 111), (1, 130), (3, 64), (3, 128), (4, 64)]
    x, states = inputs(sum(counts)), torch.stack([start_state() * (i + 1) for i in range(5)])
    out, last, rungs = several(x, states, starts, counts, cuts)
    first = 0
    for i, count in enumerate(counts):
        own = tuple(after for s, after in cuts if s == i)
        alone = fold(part(x, first, first + count), states[i], starts[i], own)
        assert torch.equal(out[first : first + count], alone[0])
        assert torch.equal(last[i], alone[1])
        assert torch.equal(rungs[[s == i for s, _ in cuts]], alone[2])
        first += count


def test_chunks_end_on_the_grid_of_positions_and_at_cuts() -> None:
    assert chunk_ends(0, 130, ()) == [64, 128, 130]
    assert chunk_ends(0, 128, (128,)) == [64, 128]
    assert chunk_ends(100, 100, (60,)) == [28, 60, 92, 100]
    assert chunk_ends(127, 1, ()) == [1]


def test_equal_keys_without_decay_stay_finite() -> None:
    """One token over and over is the worst case of the triangular system."""
    x = inputs(640)
    same = DeltaInputs(
        x.q[:1].expand(640, -1, -1),
        x.k[:1].expand(640, -1, -1),
        x.v,
        torch.zeros(640, VALUE_HEADS),
        torch.ones_like(x.beta),
    )
    out, last, _ = fold(same, start_state(), 0, ())
    expected, states = token_by_token(same, start_state())
    assert torch.allclose(out, expected, atol=1e-4)
    assert torch.allclose(last, states[-1], atol=1e-4)


def test_strong_decay_neither_overflows_nor_leaks() -> None:
    x = inputs(130)
    strong = DeltaInputs(x.q, x.k, x.v, torch.full_like(x.g, -60.0), x.beta)
    out, last, _ = fold(strong, start_state(), 0, ())
    expected, states = token_by_token(strong, start_state())
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(last, states[-1], atol=1e-5)


def test_an_update_is_one_token_of_each_sequence() -> None:
    x = inputs(5)
    states = torch.stack([start_state() * (i + 1) for i in range(5)])
    before = states.clone()
    out = delta_update(x, states)
    for i in range(5):
        expected, after = token_by_token(part(x, i, i + 1), before[i])
        assert torch.allclose(out[i], expected[0], atol=1e-5)
        assert torch.allclose(states[i], after[0], atol=1e-5)
