"""Convolution and gates of prompts laid end to end, against their twins."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import prompt, twins  # noqa: E402
from stepwell.ops.triton.prompt import Rows  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, close  # noqa: E402

CHANNELS, SLOTS = 40, 5
SIZES = {3: 1, 0: 2, 4: 19, 1: 3}


def laid_out(made: Made) -> tuple[torch.Tensor, torch.Tensor, Rows]:
    """Inputs, windows and rows of sequences of those sizes on those slots; the other slot's window is NaN."""
    first, slots, at = [], [], 0
    for slot, size in SIZES.items():
        first += [at] * size
        slots += [slot] * size
        at += size
    window = torch.full((SLOTS, 4, CHANNELS), NAN)
    window[list(SIZES), :3] = made.normal(len(SIZES), 3, CHANNELS)
    return made.strided(at, CHANNELS), window, Rows(torch.tensor(first), torch.tensor(slots))


def test_each_sequence_is_convolved_after_its_own_window() -> None:
    made = Made(0)
    x, window, rows = laid_out(made)
    weight = made.normal(4, CHANNELS)
    found = prompt.conv_prompts(x, weight, window, rows)
    assert found.isfinite().all()
    assert close(found, twins.conv_prompts(x, weight, window, rows))


def test_windows_are_kept_for_rungs_and_slots() -> None:
    made = Made(1)
    x, window, rows = laid_out(made)
    kept = [torch.full((3, 4, CHANNELS), NAN)[:, :3] for _ in range(2)]
    ends, columns = torch.tensor([2, 10, 22]), torch.tensor([2, 0, 1])
    last, slots = torch.tensor([1, 3, 22, 25]), torch.tensor(list(SIZES))
    for ops, target, own in ((prompt, kept[0], window.clone()), (twins, kept[1], window.clone())):
        ops.keep_windows(x, own, rows, ends, target, columns)
        ops.keep_windows(x, own, rows, last, own, slots)
        kept.append(own)
    assert kept[0].isfinite().all()
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[2].nan_to_num(), kept[3].nan_to_num())
    assert kept[2][2].isnan().all()


def test_gates_are_a_decay_and_a_share() -> None:
    made = Made(2)
    b, a = made.strided(19, 6), 9 * made.strided(19, 6)
    rate, bias = -made.uniform(6), made.normal(6)
    for found, expected in zip(prompt.gates(b, a, rate, bias), twins.gates(b, a, rate, bias), strict=True):
        assert close(found, expected)
