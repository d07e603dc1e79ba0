"""Paged attention against the plain formula, over pages that hold NaN wherever nothing was written."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.attention import PagedAttention, places, write_kv  # noqa: E402

BLOCK, HEADS, KV_HEADS, DIM = 4, 6, 2, 8
CPU = torch.device("cpu")


class Paged:
    """One sequence in random pages of a strided arena of two layers."""

    def __init__(self, length: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.k, self.v = (torch.randn(length, KV_HEADS, DIM, generator=rng) for _ in "kv")
        self.q = torch.randn(length, HEADS, DIM, generator=rng)
        self.table = np.empty(0, np.int32)

    def place(self, table: np.ndarray, k_pages: torch.Tensor, v_pages: torch.Tensor) -> Paged:
        self.table = table.astype(np.int32)
        at = np.arange(len(self.k))
        place = places(table[at // BLOCK].astype(np.int64), at % BLOCK, k_pages)
        write_kv(self.k, self.v, k_pages, v_pages, torch.from_numpy(place))
        return self

    def expected(self, first: int) -> torch.Tensor:
        """Rows from `first` on, by the formula."""
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", self.q, k) / DIM**0.5
        seen = torch.ones(len(k), len(k), dtype=torch.bool).tril()
        chances = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", chances, v)[first:]


def planned(many: list[Paged], starts: list[int]) -> PagedAttention:
    """All tokens of each sequence from its start on are new."""
    counts = [len(one.k) - start for one, start in zip(many, starts, strict=True)]
    return PagedAttention.plan(
        [one.table for one in many], starts, counts, BLOCK, HEADS // KV_HEADS, CPU, torch.float32
    )


def arena(pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    kv = torch.full((pages, 2, 2, BLOCK, KV_HEADS, DIM), float("nan"))
    return kv[:, 1, 0], kv[:, 1, 1]


@pytest.mark.parametrize(("length", "start"), [(1, 0), (7, 0), (16, 0), (30, 13), (600, 0), (600, 70), (600, 257)])
def test_prefill_sees_what_came_before(length: int, start: int) -> None:
    k_pages, v_pages = arena(160)
    pages = np.random.default_rng(0).permutation(160)[: -(-length // BLOCK)]
    one = Paged(length, 1).place(pages, k_pages, v_pages)
    found = planned([one], [start])(one.q[start:], k_pages, v_pages)
    assert torch.allclose(found, one.expected(start), atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "starts"),
    [
        ((9, 30), (8, 0)),
        ((12, 12, 12), (4, 4, 4)),
        ((5, 300, 200, 9, 600, 41), (4, 299, 0, 0, 3, 0)),
        ((40, 33, 47), (0, 0, 0)),
        ((300, 290), (0, 17)),
        ((20, 20, 9), (17, 18, 8)),  # padded, the first two have as many rows as the batch
        ((20, 20), (19, 18)),
    ],
)
def test_sequences_of_any_number_of_new_tokens_equal_each_alone(
    lengths: tuple[int, ...], starts: tuple[int, ...]
) -> None:
    k_pages, v_pages = arena(320)
    free = list(np.random.default_rng(1).permutation(320))
    many = []
    for i, length in enumerate(lengths):
        need = -(-length // BLOCK)
        table, free = np.array(free[:need]), free[need:]
        many.append(Paged(length, i).place(table, k_pages, v_pages))
    q = torch.cat([one.q[start:] for one, start in zip(many, starts, strict=True)])
    expected = torch.cat([one.expected(start) for one, start in zip(many, starts, strict=True)])
    assert torch.allclose(planned(many, list(starts))(q, k_pages, v_pages), expected, atol=1e-5)


@pytest.mark.parametrize("lengths", [(1,), (9,), (8, 8, 8), (3, 17, 1), (5, 200, 9, 190, 6)])
def test_decodes_of_any_lengths_equal_each_alone(lengths: tuple[int, ...]) -> None:
    k_pages, v_pages = arena(150)
    free = list(np.random.default_rng(0).permutation(150))
    many = []
    for i, length in enumerate(lengths):
        need = -(-length // BLOCK)
        table, free = np.array(free[:need]), free[need:]
        many.append(Paged(length, i).place(table, k_pages, v_pages))
    attend = planned(many, [length - 1 for length in lengths])
    found = attend(torch.stack([one.q[-1] for one in many]), k_pages, v_pages)
    expected = torch.cat([one.expected(len(one.q) - 1) for one in many])
    assert torch.allclose(found, expected, atol=1e-5)


def test_very_unequal_decodes_are_not_padded_to_one_length() -> None:
    tables = [np.arange(-(-n // BLOCK), dtype=np.int32) for n in (5, 2000, 9, 1900)]
    plan = PagedAttention.plan(tables, (4, 1999, 8, 1899), (1, 1, 1, 1), BLOCK, 3, CPU, torch.float32)
    assert [group.length for group in plan.groups] == [9, 2000]


def test_padding_of_prompts_costs_at_most_half_as_much_again() -> None:
    counts = [64 + 16 * i for i in range(8)] + [500]
    tables = [np.arange(-(-n // BLOCK), dtype=np.int32) for n in counts]
    plan = PagedAttention.plan(tables, [0] * 9, counts, BLOCK, 3, CPU, torch.float32)
    assert len(plan.groups) < 9  # prompts alike are computed together
    work = sum(group.tiles * group.queries * group.length for group in plan.groups)
    assert work <= 1.5 * (sum(n * n for n in counts[:8]) + 256 * 256 + 244 * 500)
