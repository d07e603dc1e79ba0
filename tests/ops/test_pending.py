"""Slots that keep inputs: the same as one token after the other, however tokens are grouped, wherever a checkpoint falls."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops import pending  # noqa: E402
from stepwell.ops.conv import conv_update  # noqa: E402
from stepwell.ops.delta_rule import DeltaInputs, delta_update  # noqa: E402
from stepwell.ops.pending import Lanes, Ring  # noqa: E402

KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM, TAPS = 2, 16, 4, 8, 4
SLOTS, TOKENS, COLUMNS = 5, 24, 3
KEYS, CHANNELS = KEY_HEADS * KEY_DIM, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
NAN = float("nan")


class Layer:
    """One layer over slots; what no lane owns is NaN, and so are rows of the ring before they are written."""

    def __init__(self, depth: int) -> None:
        rng = torch.Generator().manual_seed(0)
        self.x = torch.randn(SLOTS, TOKENS, CHANNELS, generator=rng)
        self.g = -torch.rand(SLOTS, TOKENS, VALUE_HEADS, generator=rng)
        self.beta = torch.rand(SLOTS, TOKENS, VALUE_HEADS, generator=rng)
        self.weight = torch.randn(TAPS, CHANNELS, generator=rng)
        self.pool = torch.randn(SLOTS, VALUE_HEADS, KEY_DIM, VALUE_DIM, generator=rng)
        self.window = torch.full((SLOTS, TAPS - 1 + depth, CHANNELS), NAN)
        self.window[:, : TAPS - 1] = torch.randn(SLOTS, TAPS - 1, CHANNELS, generator=rng)
        self.ring = Ring.empty(SLOTS, depth, KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM, torch.device("cpu"))
        for part in (self.ring.q, self.ring.k, self.ring.v, self.ring.g, self.ring.beta):
            part.fill_(NAN)
        self.rungs = torch.full((COLUMNS, VALUE_HEADS, KEY_DIM, VALUE_DIM), NAN)
        self.windows = torch.full((COLUMNS, TAPS - 1, CHANNELS), NAN)
        self.committed = torch.zeros(SLOTS, dtype=torch.int64)
        self.pending = torch.zeros(SLOTS, dtype=torch.int64)

    def step(
        self,
        slots: list[int],
        count: int,
        *,
        accepted: list[int] | None = None,
        fold_new: bool = False,
        rungs: dict[int, tuple[int, int]] | None = None,
    ) -> torch.Tensor:
        """Compute `count` new tokens in each slot; of them `accepted` count afterwards. `rungs`: by row, (column, after)."""
        rungs = rungs or {}
        at = torch.tensor(slots)
        rung, after = torch.full((len(slots),), -1), torch.full((len(slots),), -1)
        for row, (column, tokens) in rungs.items():
            rung[row], after[row] = column, tokens
        lanes = Lanes(at, self.committed[at], self.pending[at], rung, after)
        marked = torch.tensor(sorted(rungs), dtype=torch.int64)
        firsts = (lanes.committed + lanes.pending).tolist()
        x, g, beta = (
            torch.cat([y[slot, first : first + count] for slot, first in zip(slots, firsts, strict=True)])
            for y in (self.x, self.g, self.beta)
        )
        out = torch.full((len(slots) * count, VALUE_HEADS, VALUE_DIM), NAN)
        if count:
            pending.conv_step(
                x, g, beta, self.weight, self.window, self.windows, lanes, marked, self.ring, fold_new=fold_new
            )
        pending.delta_step(self.pool, self.rungs, lanes, marked, self.ring, out, fold_new=fold_new)
        self.committed[at] += lanes.pending + (count if fold_new else 0)
        self.pending[at] = 0 if fold_new else torch.tensor(accepted or [count] * len(slots))
        return out.view(len(slots), count, VALUE_HEADS, VALUE_DIM)


def one_by_one(slot: int) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Outputs, states and windows of a slot after each token, by the operations that fold at once."""
    layer = Layer(1)
    window, state = layer.window[slot : slot + 1, : TAPS - 1].clone(), layer.pool[slot : slot + 1].clone()
    outputs, states, windows = [], [], []
    for t in range(TOKENS):
        mixed = conv_update(layer.x[slot, t : t + 1], layer.weight, window)
        q, k, v = mixed.split((KEYS, KEYS, VALUE_HEADS * VALUE_DIM), -1)
        heads = DeltaInputs(
            q.view(1, KEY_HEADS, KEY_DIM),
            k.view(1, KEY_HEADS, KEY_DIM),
            v.view(1, VALUE_HEADS, VALUE_DIM),
            layer.g[slot, t : t + 1],
            layer.beta[slot, t : t + 1],
        )
        outputs.append(delta_update(heads, state)[0])
        states.append(state[0].clone())
        windows.append(window[0].clone())
    return torch.stack(outputs), states, windows


@pytest.mark.parametrize("fold_new", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_steps_of_any_size_equal_one_token_after_the_other(fold_new: bool, count: int) -> None:
    layer = Layer(2 * count)
    found = torch.cat([layer.step([3, 0], count, fold_new=fold_new) for _ in range(4)], 1)
    layer.step([3, 0], 0)  # what is pending is folded
    for row, slot in enumerate((3, 0)):
        outputs, states, windows = one_by_one(slot)
        assert torch.allclose(found[row], outputs[: 4 * count], atol=1e-5)
        assert torch.allclose(layer.pool[slot], states[4 * count - 1], atol=1e-5)
        assert layer.committed[slot] == 4 * count
        kept = layer.window[slot, : TAPS - 1] if fold_new else layer.window[slot, count : count + TAPS - 1]
        assert torch.equal(kept, windows[4 * count - 1])
    untouched = Layer(2 * count)
    assert torch.equal(layer.pool[[1, 2, 4]], untouched.pool[[1, 2, 4]])


def test_a_state_does_not_depend_on_how_tokens_were_grouped_or_which_drafts_failed() -> None:
    """Twelve tokens: one by one, three by three, and with drafts of which some were not accepted. The same bits."""
    single, triple, drafted = Layer(2), Layer(6), Layer(8)
    for _ in range(12):
        single.step([2], 1)
    for _ in range(4):
        triple.step([4, 2], 3)
    for accepted in (1, 4, 2, 3, 2):
        drafted.step([2, 0], 4, accepted=[accepted, 1])
    for layer in (single, triple, drafted):
        layer.step([2], 0)
        assert layer.committed[2] == 12
    assert torch.equal(single.pool[2], triple.pool[2])
    assert torch.equal(single.pool[2], drafted.pool[2])


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_a_checkpoint_is_the_state_after_as_many_tokens_as_it_says(after: int) -> None:
    """Two tokens are pending and three are new: it may fall among either."""
    layer = Layer(5)
    layer.step([1, 4], 2)
    layer.step([1, 4], 3, rungs={1: (2, after)})
    _, states, windows = one_by_one(4)
    assert torch.allclose(layer.rungs[2], states[after - 1], atol=1e-5)
    assert torch.equal(layer.windows[2], windows[after - 1])
    assert layer.rungs[:2].isnan().all() and layer.windows[:2].isnan().all()
    assert torch.allclose(layer.pool[4], states[1], atol=1e-5)  # only what was accepted is in the slot
