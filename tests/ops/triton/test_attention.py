"""Attention over pages against its twins: strided arenas, NaN beyond every end, pages in any order."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import attention, twins  # noqa: E402
from tests.amounts import long  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, close, e4m3_as_on_a_gpu  # noqa: E402, F401

BLOCK, KV_HEADS, DIM, PAGES = 4, 2, 16, 24
HEADS = 6


def arena() -> tuple[torch.Tensor, torch.Tensor]:
    """One layer's keys and values in page-major memory of three layers, all NaN."""
    memory = torch.full((PAGES, 3, 2, BLOCK, KV_HEADS, DIM), NAN)
    return memory[:, 1, 0], memory[:, 1, 1]


def filled(made: Made, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values and a table of pages that hold that many tokens; the rest is NaN, unused entries name no page."""
    k_pages, v_pages = arena()
    free = made.shuffled(PAGES).tolist()
    table = torch.full((len(lengths), PAGES), 2**30, dtype=torch.int32)
    for row, length in enumerate(lengths):
        for i in range(0, length, BLOCK):
            page, size = free.pop(), min(BLOCK, length - i)
            table[row, i // BLOCK] = page
            k_pages[page, :size], v_pages[page, :size] = made.normal(2, size, KV_HEADS, DIM)
    return k_pages, v_pages, table


@pytest.mark.parametrize("rows", [1, 5])
def test_queries_and_keys_are_normed_and_rotated_and_stored(rows: int) -> None:
    made = Made(0)
    qk, v = made.strided(rows, (HEADS + KV_HEADS) * DIM), made.strided(rows, KV_HEADS * DIM)
    q_norm, k_norm, angle = made.normal(DIM), made.normal(DIM), made.normal(rows, 3)
    page, offset = made.shuffled(PAGES)[:rows], torch.arange(rows) % BLOCK
    mine, other = arena(), arena()
    found = attention.qkv_step(qk, v, q_norm, k_norm, angle.cos(), angle.sin(), *mine, page, offset, 1e-6)
    expected = twins.qkv_step(qk, v, q_norm, k_norm, angle.cos(), angle.sin(), *other, page, offset, 1e-6)
    assert found.isfinite().all()
    assert close(found, expected)
    assert close(mine[0], other[0])
    assert close(mine[1], other[1])


def in_fp8(pages: torch.Tensor) -> torch.Tensor:
    """The same pages, rounded to e4m3; NaN stays NaN."""
    return pages.clone().to(torch.float8_e4m3fn)


@pytest.mark.usefixtures("e4m3_as_on_a_gpu")
def test_what_is_too_large_for_fp8_is_stored_as_its_largest_value() -> None:
    """Never as NaN, nor as infinity, which e4m3 has not."""
    made, rows = Made(4), 5
    qk, v = made.strided(rows, (HEADS + KV_HEADS) * DIM), made.strided(rows, KV_HEADS * DIM)
    v[0], v[1, 0], v[2, 1] = 1e4 * v[0], 3e38, float("-inf")
    q_norm, k_norm, angle = made.normal(DIM), made.normal(DIM) * 400, made.normal(rows, 3)
    page, offset = made.shuffled(PAGES)[:rows], torch.arange(rows) % BLOCK
    mine, other = ([in_fp8(pages) for pages in arena()] for _ in range(2))
    attention.qkv_step(qk, v, q_norm, k_norm, angle.cos(), angle.sin(), *mine, page, offset, 1e-6)
    twins.qkv_step(qk, v, q_norm, k_norm, angle.cos(), angle.sin(), *other, page, offset, 1e-6)
    for found, expected in zip(mine, other, strict=True):
        assert found[page, offset].float().isfinite().all() and found[page, offset].float().abs().max() == 448
        assert close(found.float(), expected.float())


@pytest.mark.usefixtures("e4m3_as_on_a_gpu")
def test_scales_of_heads_divide_what_is_stored_and_multiply_queries_and_results() -> None:
    """Powers of two, so nothing is rounded more: in the model's own type, attention is the same to the last bit with and without them."""
    made, rows, of_keys, of_values = Made(5), 5, torch.tensor([4.0, 0.125]), torch.tensor([0.5, 64.0])
    qk, v = made.strided(rows, (HEADS + KV_HEADS) * DIM), made.strided(rows, KV_HEADS * DIM)
    norms, angle, gate = made.normal(2, DIM), made.normal(rows, 3), made.strided(1, HEADS * DIM)
    page, offset = torch.zeros(rows, dtype=torch.int64), torch.arange(rows) % BLOCK
    page[BLOCK:] = 1
    table, lengths = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([rows], dtype=torch.int32)
    asked, found = (qk, v, *norms, angle.cos(), angle.sin()), []
    for scales in ((None, None), (of_keys, of_values)):
        mine, other = arena(), arena()
        q = attention.qkv_step(*asked, *mine, page, offset, 1e-6, *scales)
        assert close(q, twins.qkv_step(*asked, *other, page, offset, 1e-6, *scales))
        assert close(mine[0][page, offset], other[0][page, offset]) and close(mine[1], other[1])
        y = attention.paged_decode(q[-1:], *mine, table, lengths, gate, splits=2, tile=16, v_scale=scales[1])
        assert close(y, twins.paged_decode(q[-1:], *mine, table, lengths, gate, v_scale=scales[1]))
        found.append((y, mine[0][page, offset], mine[1][page, offset]))
    (plain, k_plain, v_plain), (scaled, k_scaled, v_scaled) = found
    assert torch.equal(plain, scaled)
    assert torch.equal(k_plain, k_scaled * of_keys[:, None]) and torch.equal(v_plain, v_scaled * of_values[:, None])
    pages = [in_fp8(pages) for pages in arena()]
    attention.qkv_step(qk, v * 1000, *asked[2:], *pages, page, offset, 1e-6, of_keys, of_values)
    stored, exact = pages[1][page, offset].float()[:, 1], (v * 1000 / 64).unflatten(1, (KV_HEADS, DIM))[:, 1]
    assert float(((stored - exact).abs() / exact.abs()).max()) < 1 / 16, "no value of this head is clamped"


def test_gathered_tokens_are_contiguous_and_nothing_else_is_read() -> None:
    lengths = [9, 1, 4]
    k_pages, v_pages, table = filled(Made(1), lengths)
    pages, first, count, at = [], [], [], 0
    for row, length in enumerate(lengths):
        for i in range(0, length, BLOCK):
            pages.append(int(table[row, i // BLOCK]))
            first.append(at + i)
            count.append(min(BLOCK, length - i))
        at += length
    where = [torch.tensor(y, dtype=torch.int64) for y in (pages, first, count)]
    mine, other = ([torch.full((at + 2, KV_HEADS, DIM), NAN) for _ in "kv"] for _ in range(2))
    attention.gather_kv(k_pages, v_pages, *where, *mine)
    twins.gather_kv(k_pages, v_pages, *where, *other)
    for found, expected in zip(mine, other, strict=True):
        assert found[:at].isfinite().all()
        assert found[at:].isnan().all()
        assert torch.equal(found[:at], expected[:at])
    k_pages, v_pages = in_fp8(k_pages), in_fp8(v_pages)
    attention.gather_kv(k_pages, v_pages, *where, *mine)
    twins.gather_kv(k_pages, v_pages, *where, *other)
    assert torch.equal(mine[0][:at], other[0][:at]) and torch.equal(mine[1][:at], other[1][:at])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("lengths", [[1], [17, 4, 33], [16, 0, 31]])
@pytest.mark.parametrize(("gated", "fp8"), [(True, False), (False, False), (True, True)])
def test_decoding_reads_each_token_once_and_no_other(lengths: list[int], splits: int, gated: bool, fp8: bool) -> None:
    made = Made(2)
    k_pages, v_pages, table = filled(made, lengths)
    if fp8:
        k_pages, v_pages = in_fp8(k_pages), in_fp8(v_pages)
    q, gate = made.normal(len(lengths), HEADS, DIM), made.strided(len(lengths), HEADS * DIM) if gated else None
    sizes = torch.tensor(lengths, dtype=torch.int32)
    found = attention.paged_decode(q, k_pages, v_pages, table, sizes, gate, splits=splits, tile=16)
    assert close(found, twins.paged_decode(q, k_pages, v_pages, table, sizes, gate))
    assert found.isfinite().all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("new", [2, long(3), long(5)])
@pytest.mark.parametrize(
    ("lengths", "counts"), [([2], [2]), ([17, 5, 33], [1, 2, 2]), ([18, 0, 1], [2, 0, 1]), ([32, 49], [2, 1])]
)
def test_several_new_tokens_see_themselves_and_what_is_before(
    lengths: list[int], counts: list[int], new: int, splits: int
) -> None:
    """Nothing behind the last of them is read, and rows of padding are finite."""
    made, rows = Made(4), len(lengths) * new
    k_pages, v_pages, table = filled(made, lengths)
    q, gate = made.normal(rows, HEADS, DIM), made.strided(rows, HEADS * DIM)
    sizes, own = (torch.tensor(y, dtype=torch.int32) for y in (lengths, counts))
    found = attention.paged_decode(q, k_pages, v_pages, table, sizes, gate, splits=splits, counts=own, tile=16)
    expected = twins.paged_decode(q, k_pages, v_pages, table, sizes, gate, own)
    real = [sequence * new + t for sequence, count in enumerate(counts) for t in range(count)]
    assert close(found[real], expected[real])
    assert found.isfinite().all()


@pytest.mark.parametrize(("counts", "tile"), [(None, 16), ([2], 16), ([2], 64)])
def test_a_token_that_is_not_a_number_is_seen(counts: list[int] | None, tile: int) -> None:
    """In one of several parts: whatever reads it is no number either, and never as if it were not there."""
    made, length = Made(6), 70
    k_pages, v_pages, table = filled(made, [length])
    k_pages[table[0, 1], 2] = NAN
    q = made.normal(2 if counts else 1, HEADS, DIM)
    own = None if counts is None else torch.tensor(counts, dtype=torch.int32)
    sizes = torch.tensor([length], dtype=torch.int32)
    found = attention.paged_decode(q, k_pages, v_pages, table, sizes, None, splits=2, counts=own, tile=tile)
    assert found.isnan().all()


@pytest.mark.parametrize("splits", [1, 2])
def test_tokens_that_come_together_get_what_they_get_one_by_one(splits: int) -> None:
    made, length = Made(5), 19
    k_pages, v_pages, table = filled(made, [length])
    q = made.normal(3, HEADS, DIM)
    sizes, count = torch.tensor([length], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    together = attention.paged_decode(q, k_pages, v_pages, table, sizes, None, splits=splits, counts=count, tile=16)
    for t in range(3):
        alone = attention.paged_decode(
            q[t : t + 1], k_pages, v_pages, table, sizes - 2 + t, None, splits=splits, tile=16
        )
        assert close(together[t : t + 1], alone)


def test_a_row_does_not_depend_on_its_batch() -> None:
    made = Made(3)
    k_pages, v_pages, table = filled(made, [17, 33])
    q, sizes = made.normal(2, HEADS, DIM), torch.tensor([17, 33], dtype=torch.int32)
    together = attention.paged_decode(q, k_pages, v_pages, table, sizes, None, splits=2, tile=16)
    alone = attention.paged_decode(q[1:], k_pages, v_pages, table[1:], sizes[1:], None, splits=2, tile=16)
    assert torch.equal(together[1:], alone)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "splits"),
    [(1, 2, 128), (1, 4, 64), (3, 2, 32), (8, 2, 16), (24, 4, 4), (48, 4, 2), (64, 2, 3), (64, 4, 3), (500, 4, 2)],
)
def test_few_rows_are_divided_and_many_fill_the_card_to_the_end(rows: int, kv_heads: int, splits: int) -> None:
    assert attention.splits_for(rows, kv_heads) == splits
