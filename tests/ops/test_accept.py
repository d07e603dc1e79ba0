"""Which drafts are accepted: the longest run that is what was drawn, and nothing behind it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.accept import Accepted, Drawn, accept  # noqa: E402
from stepwell.ops.sampling import NO_TOKEN  # noqa: E402


def seen(rows: list[list[int]], drafts: list[list[int]], forced: float | None = None) -> Accepted:
    """Sequence i draws `rows[i]`, in slot i + 1; slot 0 is somebody else's."""
    counts = torch.tensor([len(own) for own in rows])
    tokens = torch.tensor([token for own in rows for token in own])
    slots = torch.arange(1, 1 + len(rows))
    drawn = Drawn(slots, counts.cumsum(0) - counts, counts, 100 * slots)
    return accept(tokens, torch.tensor([[7, 7, 7], *drafts]), drawn, forced, 50)


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
