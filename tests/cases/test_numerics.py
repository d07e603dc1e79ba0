"""Numbers of a real hybrid around its rungs: tails of one token, images bit for bit, pages far up the table, odd company."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.cache.moves import Extent, Move, Tier  # noqa: E402
from stepwell.sched.step import Cut, FromImage  # noqa: E402
from stepwell.store.copier import HostCopier  # noqa: E402
from stepwell.store.host import HostArena  # noqa: E402
from tests.engine.conftest import LENGTH, pairs  # noqa: E402, F401
from tests.engine.rig import Rig, work  # noqa: E402

TOLERANCE = 1e-4
DENSE, EXPERTS = "qwen3_next", "qwen3_5_moe moe"
MANY = 1 << 16
"""Page numbers from here on need more than 16 bits."""


@pytest.fixture(params=[DENSE, EXPERTS])
def model(request: Any, pairs: Any) -> Any:  # noqa: F811
    return pairs[request.param]


@pytest.fixture
def dense(pairs: Any) -> Any:  # noqa: F811
    return pairs[DENSE]


def _off(logits: Any, reference: Any) -> float:
    """Largest difference; NaN stays NaN, which is below nothing."""
    return float((logits - reference).abs().max())


def _digest(rig: Rig, pages: Any) -> bytes:
    return hashlib.sha256(rig.arena.read(pages).tobytes()).digest()


@pytest.mark.parametrize("boundary", [64, 80, 128])
def test_a_resume_with_a_tail_of_any_length_equals_the_whole(model: Any, boundary: int) -> None:
    """One token after the rung, two, one less than to the next rung, and exactly to it."""
    rig = Rig(model.decoder)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(model.tokens, pages, 0, LENGTH, cuts=[Cut(boundary, image)]))
    for tail in (1, 2, 15, 16, 17, 63, 64):
        end = boundary + tail
        if end <= LENGTH:
            own = np.concatenate((pages[: boundary // 16], rig.table(tail)))
            resumed = work(model.tokens, own, boundary, end, FromImage(image), slot=1, write_from=boundary)
            assert _off(rig.last(resumed), model.reference[end - 1]) < TOLERANCE, tail


def test_prompts_in_chunks_of_unequal_length_beside_each_other_equal_each_alone(model: Any) -> None:
    """Every sequence ends in another step, so the rows beside it are others each time."""
    lengths = (3, 17, 64, 65, LENGTH)
    rig = Rig(model.decoder)
    tables = [rig.table(n) for n in lengths]
    for start in (0, 64, 128):
        rows = [i for i, n in enumerate(lengths) if n > start]
        ends = [min(start + 64, lengths[i]) for i in rows]
        works = [work(model.tokens, tables[i], start, end, slot=i) for i, end in zip(rows, ends, strict=True)]
        for end, logits in zip(ends, rig.run(*works)[1], strict=True):
            assert _off(logits, model.reference[end - 1]) < TOLERANCE


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_an_image_is_the_live_state_bit_for_bit(dense: Any, state: Any) -> None:
    rig = Rig(dense.decoder, state=state)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(dense.tokens, pages, 0, 80, cuts=[Cut(80, image)]))
    left = rig.live.as_images(rig.arena.get(image))
    assert left.recurrent.dtype == rig.live.recurrent.dtype == state
    assert torch.equal(left.recurrent[:, 0], rig.live.recurrent[:, 0])
    assert torch.equal(left.conv[:, 0], rig.live.conv[:, 0])
    rig.last(work(dense.tokens, pages, 80, 81, FromImage(image), slot=1))
    rig.last(work(dense.tokens, pages, 80, 81))
    assert torch.equal(rig.live.recurrent[:, 0], rig.live.recurrent[:, 1])
    assert torch.equal(rig.live.conv[:, 0], rig.live.conv[:, 1])


@pytest.mark.parametrize("inner", [False, True])
def test_every_layer_of_an_image_is_written(model: Any, inner: bool) -> None:
    """Pages start as bytes that are no number: what a layer leaves out would still be there."""
    rig = Rig(model.decoder)
    image = rig.image()
    rig.last(work(model.tokens, rig.table(LENGTH), 0, LENGTH if inner else 64, cuts=[Cut(64, image)]))
    left = rig.live.as_images(rig.arena.get(image))
    for part in (left.recurrent, left.conv):
        assert torch.isfinite(part).all() and all(layer.abs().max() > 0 for layer in part)


def test_an_image_does_not_change_with_the_state_it_was_taken_from(dense: Any) -> None:
    """Fifty tokens go on from the live state; the image stays, and five runs from it are equal to the bit."""
    rig = Rig(dense.decoder, pages=300)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(dense.tokens, pages, 0, 64, cuts=[Cut(64, image)]))
    before = _digest(rig, image)
    for at in range(64, 114):
        rig.last(work(dense.tokens, pages, at, at + 1))
    assert _digest(rig, image) == before
    runs = []
    for slot in (1, 2, 3, 1, 0):
        own = np.concatenate((pages[:4], rig.table(LENGTH - 64)))
        rig.last(work(dense.tokens, own, 64, 100, FromImage(image), slot=slot, write_from=64))
        runs.append(rig.last(*(work(dense.tokens, own, at, at + 1, slot=slot) for at in range(100, 104))))
    assert all(torch.equal(run, runs[0]) for run in runs)
    assert _off(runs[0], dense.reference[103]) < TOLERANCE
    assert _digest(rig, image) == before


@pytest.mark.parametrize("chunk", [16, 48, 64])
def test_documents_one_after_another_in_one_slot_give_the_bits_of_an_engine_of_their_own(
    dense: Any, chunk: int
) -> None:
    used = Rig(dense.decoder, pages=100, slots=1)
    for seed in range(4):
        tokens = np.random.default_rng(seed).integers(3, 512, 100).astype(np.int32)
        new = Rig(dense.decoder, pages=10, slots=1, seed=seed)
        said = []
        for rig in (used, new):
            pages = rig.table(100)
            said.append(rig.last(*(work(tokens, pages, at, min(at + chunk, 100)) for at in range(0, 100, chunk))))
        assert torch.equal(*said)


def test_pages_far_up_the_table_are_the_pages_that_are_meant(dense: Any) -> None:
    """Page numbers past 65,535, for KV and images; every other page keeps its bytes, those 65,536 below first of all."""
    rig = Rig(dense.decoder, pages=MANY + 600, block=1)
    high = np.random.default_rng(3).permutation(np.arange(MANY, MANY + 600, dtype=np.int32))
    pages, image = high[:LENGTH], high[LENGTH : LENGTH + rig.geometry.image_pages]
    assert len(image) == rig.geometry.image_pages, "the image has its place up there too"
    others = np.setdiff1d(np.arange(MANY + 600, dtype=np.int32), np.concatenate((pages, image)))
    before = _digest(rig, others)
    rig.last(work(dense.tokens, pages, 0, 128, cuts=[Cut(64, image)], block=1))
    assert _off(rig.last(work(dense.tokens, pages, 128, 129, block=1)), dense.reference[128]) < TOLERANCE
    resumed = work(dense.tokens, pages, 64, LENGTH, FromImage(image), slot=1, write_from=129, block=1)
    assert _off(rig.last(resumed), dense.reference[-1]) < TOLERANCE
    assert _digest(rig, others) == before


def test_slots_far_up_a_tier_are_the_slots_that_are_meant() -> None:
    device, host = HostArena(MANY + 8, 8), HostArena(MANY + 8, 8)
    every = np.arange(MANY + 8, dtype=np.int32)
    device.write(every, every.astype("<u8").view(np.uint8).reshape(-1, 8))
    there, back = (np.array(slots, np.int32) for slots in ([MANY + 5, MANY, 3], [MANY + 1, 0, MANY + 7]))
    copier = HostCopier({Tier.DEVICE: device, Tier.HOST: host})
    copier.copy(Move(1, "kv", Extent(Tier.DEVICE, there), Extent(Tier.HOST, back), 0))
    assert host.read(back).view("<u8").ravel().tolist() == there.tolist()
    copier.copy(Move(2, "kv", Extent(Tier.HOST, back), Extent(Tier.DEVICE, back), 0))
    found = device.read(every).view("<u8").ravel()
    assert found[back].tolist() == there.tolist()
    rest = np.setdiff1d(every, back)
    assert (found[rest] == rest).all()
