"""Which drafts are accepted: the longest run that is what was drawn, and nothing behind it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.accept import Accepted, Drawn, Forced, Standing, accept, settle  # noqa: E402
from stepwell.ops.sampling import NO_TOKEN  # noqa: E402


def seen(rows: list[list[int]], drafts: list[list[int]], forced: float | None = None) -> Accepted:
    """Sequence i draws `rows[i]`, in slot i + 1; slot 0 is somebody else's."""
    counts = torch.tensor([len(own) for own in rows])
    tokens = torch.tensor([token for own in rows for token in own])
    slots = torch.arange(1, 1 + len(rows))
    drawn = Drawn(slots, counts.cumsum(0) - counts, counts, 100 * slots)
    share = None if forced is None else Forced(round(1000 * forced), 50)
    return accept(tokens, torch.tensor([[7, 7, 7], *drafts]), drawn, share)


@pytest.mark.parametrize(
    ("own", "drafts", "kept"),
    [
        ([1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 4]),
        ([1, 2, 3, 4], [1, 2, 9], [1, 2, 3]),
        ([1, 2, 3, 4], [9, 2, 3], [1]),  # a draft behind a wrong one is of another past
        ([1, 2], [1, 2, 3], [1, 2]),  # fewer rows than drafts
        ([1], [1, 2, 3], [1]),
        ([NO_TOKEN, 2, 3, 4], [1, 2, 3], []),
        ([1, NO_TOKEN, 3, 4], [1, 2, 3], [1]),  # its next step will meet the same, and say so
    ],
)
def test_drafts_count_up_to_the_first_that_was_not_drawn(own: list[int], drafts: list[int], kept: list[int]) -> None:
    found = seen([[5, 6], own, [8]], [[9, 9, 9], drafts, [8, 8, 8]])
    told = found.tokens.tolist()
    assert told == [5, NO_TOKEN, *kept, *[NO_TOKEN] * (len(own) - len(kept)), 8]
    assert found.taken.tolist() == [1, max(1, len(kept)), 1]
    assert found.last.tolist() == [5, kept[-1] if kept else NO_TOKEN, 8]


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.7, 500, 900), (1.0, 1000, 1000)])
def test_a_share_of_drafts_is_accepted_by_force(share: float, least: int, most: int) -> None:
    rows = [[3, 4, 5, 6], [7, 8, 9, 10]] * 500
    found = seen(rows, [[3, 8, 5], [1, 1, 1]] * 500, share)
    first = int((found.taken > 1).sum())
    assert least <= first <= most
    if share == 1.0:
        assert found.tokens[:8].tolist() == [3, 8, 5, 6, 1, 1, 1, 10]
    if share == 0.0:
        assert found.tokens[0] != 3 and (found.taken == 1).all()


@pytest.mark.parametrize("share", [None, 0, 500])
def test_the_kernel_settles_as_torch_does(share: int | None) -> None:
    """Uneven sequences, a broken row, prompts behind; rows beyond are NaN."""
    pytest.importorskip("triton")
    from stepwell.ops.triton import accept as kernels

    made = torch.Generator().manual_seed(0)
    counts = torch.tensor([4, 1, 3, 4, 2, 1, 1])
    slots, total, decodes = torch.tensor([6, 1, 0, 3, 7, 2, 5]), int(counts.sum()), 5
    drawn = Drawn(slots, counts.cumsum(0) - counts, counts, torch.randint(0, 5000, (7,), generator=made))
    rows = torch.full((total + 2, 24), float("nan"))[:, :20]
    rows[:total] = torch.randn(total, 20, generator=made)
    most = 0
    for seed in range(6):
        made.manual_seed(seed)
        tokens = torch.randint(0, 3, (total,), generator=made)
        tokens[4] = NO_TOKEN if seed % 2 else 1
        found = []
        for one in (settle, kernels.settle):
            made.manual_seed(seed)
            standing = Standing(
                torch.full((9,), 77), torch.zeros(9, dtype=torch.int64), torch.zeros(9, 20), torch.randint(0, 3, (9, 3), generator=made)
            )  # fmt: skip
            told = one(tokens, rows, drawn, decodes, standing, None if share is None else Forced(share, 3))
            found.append((told, standing.draws, standing.pending, standing.hidden))
        for mine, other in zip(*found, strict=True):
            assert torch.equal(mine, other)
        most = max(most, int(found[0][2].max()))
    assert most > 1 or share == 0
