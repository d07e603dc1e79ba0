"""A runner whose live slots keep the inputs of their last token pending gives the logits and images of one that folds at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.sched.step import Carry, Cut, FromImage  # noqa: E402
from tests.engine.conftest import LENGTH  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402

TOLERANCE = 1e-4
DEPTH = 3


@pytest.fixture(params=["qwen3_5", "qwen3_next moe"])
def pair(request: Any, pairs: Any) -> Any:
    return pairs[request.param]


def off(logits: Any, reference: Any) -> float:
    return float((logits - reference).abs().max())


def test_decodes_equal_transformers_and_one_token_stays_pending(pair: Any) -> None:
    rig = Rig(pair.decoder, depth=DEPTH)
    pages = rig.table(LENGTH)
    rig.last(work(pair.tokens, pages, 0, 100, slot=2))
    assert (rig.live.committed[2], rig.live.pending[2]) == (100, 0)
    for i in range(100, LENGTH):
        before = rig.live.recurrent[:, 2].clone()
        assert off(rig.last(work(pair.tokens, pages, i, i + 1, slot=2)), pair.reference[i]) < TOLERANCE
        assert (rig.live.committed[2], rig.live.pending[2]) == (i, 1)
        assert torch.equal(before, rig.live.recurrent[:, 2]) == (i == 100)  # the first had nothing to fold


def test_sequences_side_by_side_in_scattered_slots(pair: Any) -> None:
    rig = Rig(pair.decoder, depth=DEPTH)
    starts = {5: 120, 0: 40, 3: 77}
    tables = {slot: rig.table(LENGTH) for slot in starts}
    for slot, n in starts.items():
        rig.last(work(pair.tokens, tables[slot], 0, n, slot=slot))
    for step in range(3):
        works = [work(pair.tokens, tables[s], n + step, n + step + 1, slot=s) for s, n in starts.items()]
        fresh = work(pair.tokens, rig.table(70), 0, 70, slot=1)
        *decoded, begun = rig.run(*works, fresh)[1]
        assert off(begun, pair.reference[69]) < TOLERANCE
        for n, logits in zip(starts.values(), decoded, strict=True):
            assert off(logits, pair.reference[n + step]) < TOLERANCE


def test_an_image_behind_a_pending_token_holds_it(pair: Any) -> None:
    rig, plain = Rig(pair.decoder, depth=DEPTH), Rig(pair.decoder)
    images = []
    for one in (rig, plain):
        pages, image = one.table(LENGTH), one.image()
        one.last(work(pair.tokens, pages, 0, 110))
        one.last(work(pair.tokens, pages, 110, 111), work(pair.tokens, pages, 111, 112, cuts=[Cut(112, image)]))
        images.append(one.live.as_images(one.arena.get(image)))
        resumed = work(pair.tokens, pages, 112, 114, FromImage(image), slot=2)
        assert off(one.last(resumed), pair.reference[113]) < TOLERANCE
    assert torch.allclose(images[0].recurrent, images[1].recurrent, atol=1e-5)
    assert torch.allclose(images[0].conv, images[1].conv, atol=1e-5)


def test_several_tokens_after_a_pending_one_fold_it_first(pair: Any) -> None:
    rig = Rig(pair.decoder, depth=DEPTH)
    pages, image = rig.table(LENGTH), rig.image()
    rig.last(work(pair.tokens, pages, 0, 60))
    rig.last(work(pair.tokens, pages, 60, 61))
    rig.last(work(pair.tokens, pages, 61, 90, Carry(), cuts=[Cut(64, rig.image()), Cut(90, image)]))
    assert (rig.live.committed[0], rig.live.pending[0]) == (90, 0)
    assert off(rig.last(work(pair.tokens, pages, 90, 91)), pair.reference[90]) < TOLERANCE
    assert off(rig.last(work(pair.tokens, pages, 90, 92, FromImage(image), slot=1)), pair.reference[91]) < TOLERANCE


@pytest.mark.parametrize("depth", [0, DEPTH])
def test_a_state_that_stands_elsewhere_is_not_gone_on_from(pair: Any, depth: int) -> None:
    rig = Rig(pair.decoder, depth=depth)
    pages = rig.table(LENGTH)
    rig.last(work(pair.tokens, pages, 0, 64))
    rig.last(work(pair.tokens, pages, 64, 65))
    for start, end in ((64, 65), (66, 67), (66, 70)):
        with pytest.raises(AssertionError, match="stand at"):
            rig.last(work(pair.tokens, pages, start, end))
    logits = rig.last(work(np.array(pair.tokens), pages, 65, 66))
    assert off(logits, pair.reference[65]) < TOLERANCE
