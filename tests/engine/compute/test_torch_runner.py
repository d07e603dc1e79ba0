"""The runner against Transformers on the same files: every way to cut, resume and batch gives the same logits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.model.loading import load_decoder  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import LAST_DRAW, Carry, Cut, FromImage, Sample, Step  # noqa: E402
from tests.engine.conftest import ARCHS, LENGTH, PLAIN  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402

TOLERANCE = 1e-4
DENSE = ("qwen3_5", "qwen3_next", "olmo_hybrid")


@pytest.fixture(params=ARCHS)
def pair(request: Any, pairs: Any) -> Any:
    return pairs[request.param]


@pytest.fixture(params=DENSE)
def dense(request: Any, pairs: Any) -> Any:
    return pairs[request.param]


def off(logits: Any, reference: Any) -> float:
    """Largest difference of the logits; NaN stays NaN, which is below nothing."""
    return float((logits - reference).abs().max())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("poison", [0xFF, 0x7F])
def test_a_prompt_and_its_decodes_equal_transformers(pair: Any, poison: int) -> None:
    rig = Rig(pair.decoder, poison=poison)
    pages = rig.table(LENGTH)
    assert off(rig.last(work(pair.tokens, pages, 0, 100)), pair.reference[99]) < TOLERANCE
    for i in range(100, LENGTH):
        assert off(rig.last(work(pair.tokens, pages, i, i + 1)), pair.reference[i]) < TOLERANCE


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DENSE[:2])
def test_a_prompt_split_anywhere_equals_the_whole(pairs: Any, name: str) -> None:
    dense = pairs[name]
    for split in range(1, LENGTH):
        rig = Rig(dense.decoder, pages=9, slots=1, seed=split)
        pages = rig.table(LENGTH)
        assert off(rig.last(work(dense.tokens, pages, 0, split)), dense.reference[split - 1]) < TOLERANCE
        near = min(split + 2, LENGTH)
        assert off(rig.last(work(dense.tokens, pages, split, near)), dense.reference[near - 1]) < TOLERANCE
        if near < LENGTH:
            assert off(rig.last(work(dense.tokens, pages, near, LENGTH)), dense.reference[-1]) < TOLERANCE


@pytest.mark.parametrize("name", PLAIN)
def test_a_prompt_of_a_plain_model_split_around_blocks_equals_the_whole(pairs: Any, name: str) -> None:
    made = pairs[name]
    for split in (1, 15, 16, 17, 63, 64, 65, 127, 128, 129):
        rig = Rig(made.decoder, pages=9, slots=1, seed=split)
        pages = rig.table(LENGTH)
        assert off(rig.last(work(made.tokens, pages, 0, split)), made.reference[split - 1]) < TOLERANCE
        assert off(rig.last(work(made.tokens, pages, split, LENGTH)), made.reference[-1]) < TOLERANCE


def test_resuming_from_any_image_of_a_pass_equals_the_pass(pair: Any) -> None:
    rig = Rig(pair.decoder)
    pages = rig.table(LENGTH)
    cuts = [Cut(at, rig.image()) for at in (64, 80, 112, 128, LENGTH)]
    assert off(rig.last(work(pair.tokens, pages, 0, LENGTH, cuts=cuts)), pair.reference[-1]) < TOLERANCE
    for cut in cuts[:-1]:
        resumed = work(pair.tokens, pages, cut.position, LENGTH, FromImage(cut.pages), slot=3, write_from=LENGTH)
        first = work(
            pair.tokens, pages, cut.position, cut.position + 1, FromImage(cut.pages), slot=4, write_from=LENGTH
        )
        assert off(rig.last(first), pair.reference[cut.position]) < TOLERANCE
        assert off(rig.last(resumed), pair.reference[-1]) < TOLERANCE


def test_cuts_on_the_grid_change_not_a_bit(dense: Any) -> None:
    plain, cut = Rig(dense.decoder), Rig(dense.decoder)
    cuts = [Cut(at, cut.image()) for at in (64, 128)]
    first = plain.last(work(dense.tokens, plain.table(LENGTH), 0, LENGTH))
    second = cut.last(work(dense.tokens, cut.table(LENGTH), 0, LENGTH, cuts=cuts))
    assert torch.equal(first, second)


def test_an_image_from_within_a_pass_is_the_state_of_a_pass_that_ends_there(dense: Any) -> None:
    rig = Rig(dense.decoder)
    inner, last = rig.image(), rig.image()
    rig.last(work(dense.tokens, rig.table(LENGTH), 0, LENGTH, cuts=[Cut(64, inner)]))
    rig.last(work(dense.tokens, rig.table(64), 0, 64, slot=1, cuts=[Cut(64, last)]))
    a, b = (rig.live.as_images(rig.arena.get(pages)) for pages in (inner, last))
    assert torch.allclose(a.recurrent, b.recurrent, atol=1e-5)
    assert torch.allclose(a.conv, b.conv, atol=1e-5)


def test_a_decode_leaves_an_image_of_the_state_behind_its_token(dense: Any) -> None:
    rig = Rig(dense.decoder)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(dense.tokens, pages, 0, 111))
    rig.last(work(dense.tokens, pages, 111, 112, cuts=[Cut(112, image)]))
    resumed = work(dense.tokens, pages, 112, 114, FromImage(image), slot=2)
    assert off(rig.last(resumed), dense.reference[113]) < TOLERANCE


@pytest.mark.parametrize("part", ["recurrent", "conv"])
def test_a_resume_without_half_of_its_state_shows_at_once(dense: Any, part: str) -> None:
    """A control: were this to pass unseen, the tests above would prove nothing."""
    rig = Rig(dense.decoder)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(dense.tokens, pages, 0, 128, cuts=[Cut(128, image)]))
    rows = rig.arena.get(image)
    broken = rig.live.as_images(rows)
    (broken.recurrent if part == "recurrent" else broken.conv).zero_()
    rig.arena.put(image, rows)
    resumed = work(dense.tokens, pages, 128, 129, FromImage(image), slot=1)
    assert off(rig.last(resumed), dense.reference[128]) > 0.3


def test_unequal_sequences_in_one_step_equal_each_alone(pair: Any) -> None:
    lengths = (3, 17, 64, 65, LENGTH)
    rig = Rig(pair.decoder)
    tables = [rig.table(n + 4) for n in lengths]
    tokens = np.concatenate((pair.tokens, pair.tokens))
    works = [work(tokens, t, 0, n, slot=i) for i, (n, t) in enumerate(zip(lengths, tables, strict=True))]
    for n, logits in zip(lengths, rig.run(*works)[1], strict=True):
        assert off(logits, pair.reference[n - 1]) < TOLERANCE
    # decodes of all but the longest, beside a sequence that begins, in an order that is not that of the slots
    going = [3, 0, 2, 1]
    for step in range(3):
        works = [work(tokens, tables[i], n, n + 1, slot=i) for i in going for n in (lengths[i] + step,)]
        fresh = work(tokens, rig.table(90), 0, 90, slot=5)
        *decoded, begun = rig.run(*works, fresh)[1]
        assert off(begun, pair.reference[89]) < TOLERANCE
        for i, logits in zip(going, decoded, strict=True):
            assert off(logits, pair.reference[lengths[i] + step]) < TOLERANCE


def test_decodes_in_scattered_slots_equal_transformers(dense: Any) -> None:
    rig = Rig(dense.decoder)
    starts = {5: 120, 0: 40, 3: 77}
    tables = {slot: rig.table(LENGTH) for slot in starts}
    for slot, n in starts.items():
        rig.last(work(dense.tokens, tables[slot], 0, n, slot=slot))
    works = [work(dense.tokens, tables[slot], n, n + 1, slot=slot) for slot, n in starts.items()]
    for n, logits in zip(starts.values(), rig.run(*works)[1], strict=True):
        assert off(logits, dense.reference[n]) < TOLERANCE


def test_very_unequal_decodes_are_grouped_and_equal_transformers(dense: Any) -> None:
    rig = Rig(dense.decoder, pages=400)
    tokens = np.tile(dense.tokens, 4)
    lengths = (5, 500, 9, 470)
    tables = [rig.table(n + 1) for n in lengths]
    for slot, (n, table) in enumerate(zip(lengths, tables, strict=True)):
        rig.last(work(tokens, table, 0, n, slot=slot))
    together = rig.run(
        *(work(tokens, t, n, n + 1, slot=s) for s, (n, t) in enumerate(zip(lengths, tables, strict=True)))
    )
    for slot, (n, table) in enumerate(zip(lengths, tables, strict=True)):
        rig.last(work(tokens, table, 0, n, slot=5))
        alone = rig.last(work(tokens, table, n, n + 1, slot=5))
        assert off(together[1][slot], alone) < TOLERANCE


def test_a_reused_slot_remembers_nothing(dense: Any) -> None:
    rig = Rig(dense.decoder)
    rig.last(work(dense.tokens[::-1].copy(), rig.table(LENGTH), 0, LENGTH))
    assert off(rig.last(work(dense.tokens, rig.table(70), 0, 70)), dense.reference[69]) < TOLERANCE


@pytest.mark.parametrize("start", [64, 80, 79])
def test_shared_pages_keep_every_byte(dense: Any, start: int) -> None:
    rig = Rig(dense.decoder)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(dense.tokens, pages, 0, start, cuts=[Cut(start, image)]))
    rig.last(work(dense.tokens, pages, start, 112))
    shared = pages[:7]
    before = hashlib.sha256(rig.arena.read(shared).tobytes()).digest()
    own = np.concatenate((shared, rig.table(LENGTH - 112)))
    # the state resumes at `start`, but KV up to 112 is there and belongs to others
    resumed = work(dense.tokens, own, start, LENGTH, FromImage(image), slot=1, write_from=112)
    assert off(rig.last(resumed), dense.reference[-1]) < TOLERANCE
    rig.last(work(dense.tokens, own, start, start + 1, FromImage(image), slot=2, write_from=112))
    assert hashlib.sha256(rig.arena.read(shared).tobytes()).digest() == before


def test_pages_of_nobody_keep_every_byte(dense: Any) -> None:
    rig = Rig(dense.decoder)
    pages, image = rig.table(LENGTH), rig.image()
    others = np.setdiff1d(np.arange(160), np.concatenate((pages, image))).astype(np.int32)
    before = rig.arena.read(others).tobytes()
    rig.last(work(dense.tokens, pages, 0, 129, cuts=[Cut(128, image)]), work(dense.tokens, pages, 129, LENGTH))
    assert rig.arena.read(others).tobytes() == before


def test_images_are_read_before_any_is_written(dense: Any) -> None:
    rig = Rig(dense.decoder)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(dense.tokens, pages, 0, 64, cuts=[Cut(64, image)]))
    overwriting = work(dense.tokens, rig.table(32), 0, 32, slot=1, cuts=[Cut(16, image)])
    resuming = work(dense.tokens, pages, 64, 66, FromImage(image), slot=2)
    logits = rig.run(overwriting, resuming)[1][1]
    assert off(logits, dense.reference[65]) < TOLERANCE


def test_a_broken_work_is_reported_and_the_others_stand(dense: Any) -> None:
    rig = Rig(dense.decoder)
    tables = [rig.table(80) for _ in range(3)]
    for slot, table in enumerate(tables):
        rig.last(work(dense.tokens, table, 0, 70, slot=slot))
    rig.live.recurrent[:, 1] = float("nan")
    result, logits = rig.run(*(work(dense.tokens, t, 70, 71, slot=s) for s, t in enumerate(tables)))
    assert [i for i, _ in result.errors] == [1]
    assert "not finite" in result.errors[0][1]
    assert [len(tokens) for tokens in result.sampled] == [1, 0, 1]
    assert off(logits[0], dense.reference[70]) < TOLERANCE
    assert off(logits[2], dense.reference[70]) < TOLERANCE


def test_a_step_launched_behind_a_broken_work_computes_the_others(dense: Any) -> None:
    rig = Rig(dense.decoder)
    tables = [rig.table(80) for _ in range(2)]
    for slot, table in enumerate(tables):
        rig.last(work(dense.tokens, table, 0, 70, slot=slot))
    rig.live.recurrent[:, 1] = float("nan")
    rig.run(*(work(dense.tokens, t, 70, 71, slot=s) for s, t in enumerate(tables)))
    unknown = np.full(80, LAST_DRAW, np.int32)
    result, _ = rig.run(*(work(unknown, t, 71, 72, slot=s) for s, t in enumerate(tables)))
    assert len(result.sampled[0]) == 1 and [i for i, _ in result.errors] == [1]


def test_a_work_that_does_not_sample_has_no_token(dense: Any) -> None:
    rig = Rig(dense.decoder)
    result, _ = rig.run(work(dense.tokens, rig.table(40), 0, 40, sample=None))
    assert result.sampled == ((),)
    assert rig.runner.launch(Step(())).result().sampled == ()


def test_a_token_that_was_only_drawn_is_read_from_its_slot(dense: Any) -> None:
    rig = Rig(dense.decoder)
    told, drawn = rig.table(80), rig.table(80)
    tokens = np.concatenate((dense.tokens[:70], np.zeros(10, np.int32)))
    for slot, table in ((0, told), (2, drawn)):
        tokens[70] = rig.run(work(tokens, table, 0, 70, slot=slot))[0].sampled[0][0]
    unknown = np.full(80, LAST_DRAW, np.int32)
    for at in range(70, 76):
        result, (known, unseen) = rig.run(work(tokens, told, at, at + 1), work(unknown, drawn, at, at + 1, slot=2))
        assert torch.allclose(known, unseen, atol=1e-5)
        tokens[at + 1] = result.sampled[0][0]


def test_ends_are_not_sampled_before_min_tokens(dense: Any) -> None:
    best = int(dense.reference[69].argmax())
    for params, eos in (
        (SamplingParams(min_tokens=1, stop_token_ids=(best, 10**6)), ()),
        (SamplingParams(min_tokens=1), (best,)),
    ):
        rig = Rig(dense.decoder, eos=eos)
        pages = rig.table(70)
        early, _ = rig.run(work(dense.tokens, pages, 0, 70, sample=Sample(params, 0)))
        late, _ = rig.run(work(dense.tokens, pages, 0, 70, slot=1, sample=Sample(params, 1)))
        assert early.sampled != ((best,),)
        assert late.sampled == ((best,),)


def test_a_seeded_answer_is_the_same_in_any_batch(dense: Any) -> None:
    warm = SamplingParams(temperature=2.0, seed=7)
    rig = Rig(dense.decoder)
    tables = [rig.table(70) for _ in range(3)]
    alone = []
    for index in range(8):
        result, _ = rig.run(work(dense.tokens, tables[0], 0, 60, sample=Sample(warm, index)))
        alone.append(result.sampled[0][0])
    assert len(set(alone)) > 3
    for index in range(8):
        works = [
            work(dense.tokens, table, 0, n, slot=slot, sample=Sample(warm, index))
            for slot, (table, n) in enumerate(zip(tables, (33, 60, 70), strict=True))
        ]
        result, _ = rig.run(*works)
        assert result.sampled[1][0] == alone[index]


def test_bfloat16_states_and_weights_stay_close(dense: Any) -> None:
    decoder = load_decoder(dense.directory, dtype=torch.bfloat16)
    rig = Rig(decoder, state=torch.bfloat16)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(dense.tokens, pages, 0, 128, cuts=[Cut(64, rig.image()), Cut(128, image)]))
    resumed = rig.last(work(dense.tokens, pages, 128, 129, FromImage(image), slot=1))
    again = rig.last(work(dense.tokens, pages, 129, LENGTH, Carry(), slot=1))
    assert off(resumed, dense.reference[128]) < 0.5
    assert off(again, dense.reference[129]) < 0.5
