"""The delta rule of prompts in chunks, against its twins, which go token by token."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.model.cuda.chunk_plan import plan_chunks  # noqa: E402
from stepwell.ops.triton import chunked, twins  # noqa: E402
from stepwell.ops.triton.chunked import Chunks, Mixed  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, close  # noqa: E402

KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM, SLOTS, COLUMNS = 2, 16, 4, 32, 6, 4
CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
SIZES = {3: 1, 0: 2, 4: 150, 1: 67}
CUTS = [(1, 2), (2, 64), (2, 100), (3, 30)]


def chunks_of(sizes: dict[int, int], cuts: list[tuple[int, int]], padding: int = 0) -> Chunks:
    """As planned; behind them two chunks of padding, of `padding` rows and of none."""
    arrays = plan_chunks(np.array(list(sizes.values())), np.array(list(sizes)), cuts)
    end = sum(sizes.values())
    for field, more in zip(arrays[:5], ([end, 0], [padding, 0], [chunked.PAD] * 2, [end, 0], [0, 0]), strict=False):
        field.resize(len(field) + 2, refcheck=False)
        field[-2:] = more
    return Chunks(*(torch.from_numpy(np.asarray(array, np.int64)) for array in arrays))


class Layer:
    """Inputs of one layer. What nobody may read is NaN: other slots, unused rungs, rows of padding, columns between strides."""

    def __init__(self, made: Made, rows: int, padding: int, slots: list[int]) -> None:
        self.x, self.z = made.strided(rows + padding, CHANNELS), made.strided(rows + padding, VALUE_HEADS * VALUE_DIM)
        self.b, self.a = made.strided(rows + padding, VALUE_HEADS), 4 * made.strided(rows + padding, VALUE_HEADS)
        for y in (self.x, self.z, self.b, self.a):
            y[rows:] = NAN
        self.taps, self.rate, self.bias = made.normal(4, CHANNELS), -made.uniform(VALUE_HEADS), made.normal(VALUE_HEADS)
        self.weight = made.normal(VALUE_DIM)
        self.window = torch.full((SLOTS, 4, CHANNELS), NAN)
        self.window[slots, :3] = made.normal(len(slots), 3, CHANNELS)
        self.pool = torch.full((SLOTS, VALUE_HEADS, KEY_DIM, VALUE_DIM), NAN)
        self.pool[slots] = made.normal(len(slots), VALUE_HEADS, KEY_DIM, VALUE_DIM)

    def prepare(self, ops: object, chunks: Chunks) -> tuple[Mixed, torch.Tensor, torch.Tensor]:
        """What is made of the rows, the rungs' windows, and the slots' windows afterwards."""
        rungs, window = torch.full((COLUMNS, 4, CHANNELS), NAN)[:, :3], self.window.clone()
        mixed = ops.prepare(  # type: ignore[attr-defined]
            self.x, self.b, self.a, self.taps, self.rate, self.bias, window, rungs, chunks, KEY_HEADS, KEY_DIM
        )
        ops.keep_windows(self.x, window, chunks)  # type: ignore[attr-defined]
        return mixed, rungs, window

    def fold(self, ops: object, mixed: Mixed, chunks: Chunks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs, states, rungs."""
        pool, rungs = self.pool.clone(), torch.full((COLUMNS, VALUE_HEADS, KEY_DIM, VALUE_DIM), NAN)
        out = ops.fold(mixed, self.z, self.weight, 1e-6, pool, rungs, chunks)  # type: ignore[attr-defined]
        return out, pool, rungs


def layer(seed: int, padding: int = 0) -> tuple[Layer, Chunks, int]:
    rows = sum(SIZES.values())
    return Layer(Made(seed), rows, padding, list(SIZES)), chunks_of(SIZES, CUTS, padding), rows


@pytest.mark.sampled(1)
@pytest.mark.parametrize("padding", [0, 5])
def test_rows_are_convolved_gated_and_made_unit(padding: int) -> None:
    one, chunks, rows = layer(0, padding)
    found, expected = (one.prepare(ops, chunks) for ops in (chunked, twins))
    for name in ("qkv", "decay", "beta"):
        assert close(getattr(found[0], name)[:rows], getattr(expected[0], name)[:rows]), name
    assert torch.equal(found[1].nan_to_num(), expected[1].nan_to_num())
    assert found[1].isfinite().all()
    assert torch.equal(found[2].nan_to_num(), expected[2].nan_to_num())
    assert found[2][2].isnan().all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("padding", [0, 5])
def test_chunks_fold_what_tokens_do_one_by_one(padding: int) -> None:
    one, chunks, rows = layer(1, padding)
    mixed, _, _ = one.prepare(twins, chunks)
    for y in (mixed.qkv, mixed.decay, mixed.beta):
        y[rows:] = NAN
    found, expected = (one.fold(ops, mixed, chunks) for ops in (chunked, twins))
    assert close(found[0], expected[0], 1e-3)
    assert not found[0][rows:].any()
    assert close(found[1], expected[1], 1e-4)
    assert found[1][[2, 5]].isnan().all()
    assert close(found[2], expected[2], 1e-4)
    assert found[2].isfinite().all()


def test_a_sequence_cut_on_the_grid_gives_equal_bits() -> None:
    one, chunks, rows = layer(2)
    whole, states, rungs = one.fold(chunked, one.prepare(chunked, chunks)[0], chunks)
    begin, at = 3, 3 + 64
    again = Layer(Made(2), rows, 0, list(SIZES))
    again.x, again.z, again.b, again.a = (y[at : begin + 150] for y in (one.x, one.z, one.b, one.a))
    again.window[4, :3], again.pool[4] = one.x[at - 3 : at], rungs[1]
    rest = chunks_of({4: 150 - 64}, [(0, 100 - 64)])
    out, after, _ = again.fold(chunked, again.prepare(chunked, rest)[0], rest)
    assert torch.equal(out, whole[at : begin + 150])
    assert torch.equal(after[4], states[4])
