"""The decode step of a gated delta net layer against its twin: pending tokens, rungs, padded rows, odd sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.pending import Lanes, Ring  # noqa: E402
from stepwell.ops.triton import recurrent, twins  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, close  # noqa: E402

KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM, SLOTS = 1, 8, 3, 4, 5
CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
COLUMNS = 2


class Layer:
    """One layer's weights and memory. Memory that no row owns is NaN and must stay as it is."""

    def __init__(self, depth: int, seed: int = 0) -> None:
        made = Made(seed)
        self.made = made
        self.weight, self.dt_bias = made.normal(4, CHANNELS), made.normal(VALUE_HEADS)
        self.rate = -made.uniform(VALUE_HEADS)
        # slots of a wider array, as one layer of an image is
        self.pool = torch.full((SLOTS, VALUE_HEADS + 1, KEY_DIM, VALUE_DIM), NAN)[:, :VALUE_HEADS]
        self.window = torch.full((SLOTS, 3 + depth, CHANNELS), NAN)
        self.ring = Ring.empty(SLOTS, depth, KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM, torch.device("cpu"))
        for y in (self.ring.q, self.ring.k, self.ring.v, self.ring.g, self.ring.beta):
            y.fill_(NAN)
        self.rungs = torch.full((COLUMNS, VALUE_HEADS + 2, KEY_DIM, VALUE_DIM), NAN)[:, :VALUE_HEADS]
        self.rung_windows = torch.full((COLUMNS, 5, CHANNELS), NAN)[:, :3]

    def open(self, slot: int) -> None:
        self.pool[slot] = self.made.normal(VALUE_HEADS, KEY_DIM, VALUE_DIM)
        self.window[slot, :3] = self.made.normal(3, CHANNELS)

    def memory(self) -> list[torch.Tensor]:
        ring = self.ring
        return [self.pool, self.window, self.rungs, self.rung_windows, ring.q, ring.k, ring.v, ring.g, ring.beta]

    def step(self, ops, x, b, a, lanes: Lanes, fold_new: bool) -> torch.Tensor:
        out = torch.full((x.shape[0], VALUE_HEADS, VALUE_DIM), NAN)
        ops.conv_step(
            x, b, a, self.weight, self.rate, self.dt_bias, self.window, self.rung_windows, lanes, self.ring, fold_new=fold_new
        )  # fmt: skip
        ops.delta_step(self.pool, self.rungs, lanes, self.ring, out, fold_new=fold_new)
        return out


def lanes(slots, committed, pending, rung=None, after=None) -> Lanes:
    none = [-1] * len(slots)
    return Lanes(
        *(torch.tensor(y, dtype=torch.int64) for y in (slots, committed, pending, rung or none, after or none))
    )


def twin_layers(depth: int) -> tuple[Layer, Layer]:
    first, second = Layer(depth), Layer(depth)
    for layer in (first, second):
        for slot in (4, 1, 0):
            layer.open(slot)
    return first, second


def both(first: Layer, second: Layer, tokens: int, rows: Lanes, fold_new: bool) -> None:
    made = Made(int(rows.committed.sum()) + tokens)
    count = rows.slots.shape[0] * tokens
    x, b, a = made.strided(count, CHANNELS), made.strided(count, VALUE_HEADS), made.strided(count, VALUE_HEADS)
    found = first.step(recurrent, x, b, a, rows, fold_new)
    expected = second.step(twins, x, b, a, rows, fold_new)
    assert found.isfinite().all()
    assert close(found, expected)
    for mine, other in zip(first.memory(), second.memory(), strict=True):
        assert close(mine, other)


def test_folding_at_once_moves_states_and_windows_on() -> None:
    first, second = twin_layers(1)
    for step in range(3):
        both(first, second, 1, lanes([4, 1, 0], [7 + step, 100 + step, step], [0, 0, 0]), True)
    assert first.pool[[2, 3]].isnan().all()


def test_several_new_tokens_fold_at_once_with_a_rung_between_them() -> None:
    first, second = twin_layers(4)
    both(first, second, 3, lanes([4, 1, 0], [7, 100, 0], [0, 0, 0], [1, -1, 0], [2, -1, 3]), True)
    assert first.rungs.isfinite().all()
    assert first.rung_windows.isfinite().all()


def test_pending_tokens_are_folded_by_the_next_step() -> None:
    first, second = twin_layers(6)
    both(first, second, 3, lanes([4, 1, 0], [7, 100, 0], [0, 0, 0]), False)
    both(first, second, 3, lanes([4, 1, 0], [7, 100, 0], [3, 1, 2]), False)
    both(first, second, 3, lanes([0, 4, 1], [2, 10, 101], [1, 3, 3], [1, -1, 0], [1, -1, 2]), False)
    both(first, second, 1, lanes([0, 4, 1], [3, 13, 104], [2, 1, 3]), False)


def test_padded_rows_work_on_the_sacrificial_slot_alone() -> None:
    first, second = twin_layers(1)
    made = Made(3)
    x, b, a = made.normal(4, CHANNELS), made.normal(4, VALUE_HEADS), made.normal(4, VALUE_HEADS)
    padded = first.step(recurrent, x, b, a, lanes([4, 1, 2, 2], [7, 9, 0, 0], [0, 0, 0, 0]), True)
    plain = second.step(recurrent, x[:2], b[:2], a[:2], lanes([4, 1], [7, 9], [0, 0]), True)
    assert torch.equal(padded[:2], plain)
    for slot in (0, 1, 3, 4):
        assert torch.equal(first.pool[slot].nan_to_num(), second.pool[slot].nan_to_num())
        assert torch.equal(first.window[slot].nan_to_num(), second.window[slot].nan_to_num())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("accepted", [(1,) * 6, (3, 1, 2), (2, 2, 2)])
def test_a_state_does_not_depend_on_how_tokens_were_grouped(accepted: tuple[int, ...]) -> None:
    """Six tokens, drafted in any groups and with rejected drafts after them, give the bits of six single steps."""
    made = Made(5)
    tokens = [made.normal(6, width) for width in (CHANNELS, VALUE_HEADS, VALUE_HEADS)]
    plain = Layer(1)
    plain.open(0)
    for t in range(6):
        plain.step(recurrent, *(y[t : t + 1] for y in tokens), lanes([0], [t], [0]), True)
    drafted = Layer(8)
    drafted.open(0)
    done = pending = 0
    for count in (*accepted, 0):
        guess = [torch.cat((y[done + pending :], 9 * y[:4]))[:4] for y in tokens]
        drafted.step(recurrent, *guess, lanes([0], [done], [pending]), False)
        done, pending = done + pending, count
    assert done == 6
    assert torch.equal(drafted.pool[0], plain.pool[0])
    assert torch.equal(drafted.window[0, :3], plain.window[0, :3])


def test_a_state_may_be_kept_in_bfloat16() -> None:
    """It is computed in float32 and rounded where it is kept: the twin's to within that, and memory of no row stays as it is."""
    first, second = twin_layers(4)
    first.pool = first.pool.bfloat16()
    first.rungs = first.rungs.bfloat16()
    rows = lanes([4, 1], [7, 2], [0, 0], [1, -1], [1, -1])
    made = Made(3)
    x, b, a = made.strided(2, CHANNELS), made.strided(2, VALUE_HEADS), made.strided(2, VALUE_HEADS)
    found = first.step(recurrent, x, b, a, rows, True)
    assert close(found, second.step(twins, x, b, a, rows, True), 5e-2)
    assert first.pool.dtype == torch.bfloat16
    for mine, other in ((first.pool, second.pool), (first.rungs, second.rungs)):
        assert close(mine.float(), other, 5e-2)


def test_programs_that_hold_a_part_of_the_columns_each_make_up_the_whole() -> None:
    whole, divided = twin_layers(1)
    rows, made = lanes([4, 1], [7, 9], [0, 0]), Made(3)
    x, b, a = made.strided(2, CHANNELS), made.strided(2, VALUE_HEADS), made.strided(2, VALUE_HEADS)
    expected, found = whole.step(recurrent, x, b, a, rows, True), torch.full((2, VALUE_HEADS, VALUE_DIM), NAN)
    ring = whole.ring  # the convolution's results
    recurrent.delta_step(divided.pool, divided.rungs, rows, ring, found, fold_new=True, block=2)
    assert close(found, expected) and close(divided.pool[[4, 1]], whole.pool[[4, 1]])
