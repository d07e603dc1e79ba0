"""Drafts on the backend of kernels against plain torch: steps of several rows a sequence, uneven ones, rungs among drafts, drafting.

Kernels run in Triton's interpreter here, and recorded passes are computed anew; `bench/mtp.py` replays them on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.model.backend import Prepared  # noqa: E402
from stepwell.model.batch import Batch, Cuts  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.cuda.spread import spread  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.ops.scaled import Scaled  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import LAST_DRAW, Cut, FromImage, Sample, Work  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402

DRAFTS, TOLERANCE = 2, 3e-5
LAST = np.full(200, LAST_DRAW, np.int32)
RECORDED = Prepared((1, 4), (64,), 8)


def rig_of(directory: Path, make: Any = None, recorded: Prepared | None = None) -> Rig:
    given = {} if make is None else {"make": make}
    decoder = dummy_decoder(directory, torch.float32, drafts=True, **given)
    rig = Rig(decoder, pages=80, depth=2 * (1 + DRAFTS), drafts=DRAFTS)
    if recorded is not None:
        decoder.prepare(rig.runner._memory, recorded)
    return rig


@pytest.fixture
def directory(request: Any, tmp_path: Path) -> Path:
    return written(tmp_path, **getattr(request, "param", {}))


@pytest.fixture
def rigs(request: Any, directory: Path) -> tuple[Rig, Rig]:
    return rig_of(directory, CudaBackend, getattr(request, "param", RECORDED)), rig_of(directory)


def answering(pages: Any, slot: int, at: int, drafts: int, cuts: list[Cut] | None = None, **params: Any) -> Work:
    sample = Sample(SamplingParams(**params), 1 + at)
    one = work(LAST, pages, at, at + 1, slot=slot, cuts=cuts or [], sample=sample)
    return replace(one, pages=pages, drafts=drafts)


def agree(rigs: tuple[Rig, Rig], *works: Work, guesses: dict[int, list[int]] | None = None) -> list[int]:
    """One step on both, `guesses` instead of what was drafted; tokens that each work has drawn."""
    for rig in rigs:
        for slot, drafts in (guesses or {}).items():
            rig.runner._memory.drafts[slot] = torch.tensor(drafts)
    (found, _), (expected, _) = (rig.run(*works) for rig in rigs)
    assert found.sampled == expected.sampled and found.errors == expected.errors
    mine, other = rigs
    one, two = mine.runner._memory, other.runner._memory
    for work_ in works:
        slot = work_.slot
        assert one.pending[slot] == two.pending[slot]
        assert one.draws[slot] == two.draws[slot]
        assert one.drafts[slot].tolist() == two.drafts[slot].tolist()
        for part in ("recurrent", "conv", "hidden"):
            ours, theirs = (getattr(m.live, part)[:, slot] for m in (one, two))
            if part == "conv":  # rows behind the window of what is pending are whatever was drafted
                ours, theirs = (y[:, : 3 + int(one.pending[slot])] for y in (ours, theirs))
            assert float((ours - theirs).abs().max()) < TOLERANCE, part
    return [len(tokens) for tokens in found.sampled]


def truth(directory: Path, prompt: np.ndarray, count: int) -> list[int]:
    """What follows the prompt, token by token."""
    rig = Rig(dummy_decoder(directory, torch.float32), pages=80)
    pages, told = rig.table(len(prompt) + count), []
    logits = rig.last(work(prompt, pages, 0, len(prompt)))
    for _ in range(count):
        told.append(int(logits.argmax()))
        prompt = np.append(prompt, told[-1]).astype(np.int32)
        logits = rig.last(work(prompt, pages, len(prompt) - 1, len(prompt)))
    return told


@pytest.mark.parametrize(
    ("directory", "rigs"), [({}, RECORDED), (EXPERTS, None)], ids=["recorded", "as it comes, experts"], indirect=True
)
@pytest.mark.long
def test_several_rows_of_a_sequence_equal_plain_torch(rigs: tuple[Rig, Rig], directory: Path) -> None:
    """All, some and none of the drafts right; sequences with fewer drafts than others, and one with none; a prompt beside."""
    prompts = {2: TOKENS[:14], 0: TOKENS[40:71], 1: TOKENS[90:95]}
    right = {slot: truth(directory, prompt, 12) for slot, prompt in prompts.items()}
    tables = {slot: rigs[0].table(70) for slot in prompts}
    agree(rigs, *(replace(work(prompts[s], tables[s], 0, len(prompts[s]), slot=s), pages=tables[s]) for s in prompts))
    at = {slot: len(prompt) for slot, prompt in prompts.items()}

    def step(drafts: dict[int, int], good: dict[int, int], *beside: Work) -> None:
        guesses = {}
        for slot in drafts:
            done = at[slot] - len(prompts[slot])
            own = right[slot][done + 1 : done + 1 + DRAFTS]
            guesses[slot] = [t if i < good[slot] else (t + 1) % 50 for i, t in enumerate(own)]
        works = [answering(tables[slot], slot, at[slot], count) for slot, count in drafts.items()]
        told = agree(rigs, *works, *beside, guesses=guesses)
        for (slot, count), drawn in zip(drafts.items(), told, strict=False):
            assert drawn == 1 + min(count, good[slot])
            at[slot] += drawn

    step({2: 2, 0: 2, 1: 2}, {2: 2, 0: 1, 1: 0})
    step({2: 2, 0: 2, 1: 0}, {2: 0, 0: 2, 1: 0})
    fresh = replace(work(TOKENS[120:], rigs[0].table(20), 0, 9, slot=3), pages=tables[1])
    step({2: 2, 0: 1, 1: 2}, {2: 2, 0: 1, 1: 2}, replace(fresh, pages=rigs[0].table(20)))
    step({2: 0, 0: 0, 1: 0}, {2: 0, 0: 0, 1: 0})
    step({2: 2, 1: 2}, {2: 1, 1: 2})


@pytest.mark.long
@pytest.mark.parametrize("after", [1, 3])
def test_a_rung_among_drafts_is_the_same_to_go_on_from(rigs: tuple[Rig, Rig], after: int) -> None:
    pages, image = rigs[0].table(60), rigs[0].image()
    agree(rigs, replace(work(TOKENS, pages, 0, 17), pages=pages))
    agree(rigs, answering(pages, 0, 17, 2))
    at = 17 + int(rigs[0].live.pending[0])
    agree(rigs, answering(pages, 0, at, 2, [Cut(at + after, image)]))
    one, two = (rig.live.as_images(rig.arena.get(image)) for rig in rigs)
    for part in ("recurrent", "conv", "hidden"):
        ours, theirs = getattr(one, part), getattr(two, part)
        assert ours.isfinite().all() and float((ours - theirs).abs().max()) < TOLERANCE, part
    resumed = work(TOKENS, pages, at + after, at + after + 3, FromImage(image), slot=1)
    agree(rigs, replace(resumed, pages=pages))


@pytest.mark.long
def test_a_prompt_folds_first_what_is_pending_and_leaves_the_rows_before_its_cuts(rigs: tuple[Rig, Rig]) -> None:
    pages, images = rigs[0].table(80), [rigs[0].image() for _ in range(3)]
    agree(rigs, replace(work(TOKENS, pages, 0, 10), pages=pages))
    agree(rigs, answering(pages, 0, 10, 0))
    cuts = [Cut(16, images[0]), Cut(32, images[1]), Cut(48, images[2])]
    agree(rigs, replace(work(TOKENS, pages, 11, 48, cuts=cuts), pages=pages))
    for image in images:
        one, two = (rig.live.as_images(rig.arena.get(image)) for rig in rigs)
        for part in ("recurrent", "conv", "hidden"):
            assert float((getattr(one, part) - getattr(two, part)).abs().max()) < TOLERANCE, part
        assert one.hidden.abs().max() > 0.01
    resumed = work(TOKENS, pages, 32, 50, FromImage(images[1]), slot=1, write_from=48)
    agree(rigs, replace(resumed, pages=np.concatenate((pages[:3], rigs[0].table(20)))))


@pytest.mark.long
def test_drafts_end_with_the_pages(rigs: tuple[Rig, Rig]) -> None:
    """Position 16 has no page: one draft is made for position 15 + 1, and what is written behind goes to nobody."""
    (page,) = rigs[0].table(16)
    only = np.array([page], np.int32)
    for rig in rigs:
        rig.runner._memory.drafts.fill_(7)
    for rig in rigs:
        rig.run(replace(work(TOKENS, only, 0, 15), pages=only))
    one, two = (rig.runner._memory.drafts[0].tolist() for rig in rigs)
    assert one[0] == two[0]
    untouched = [page for page in range(80) if page != only[0]]
    assert (rigs[0].arena.rows[untouched] == 0xFF).all()


@pytest.mark.long
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}], ids=["as the pass draws", "looked at"])
def test_rows_draw_as_without_drafts(directory: Path, more: dict[str, Any]) -> None:
    """One at a time on one rig; on the other all at once, with what was drawn for drafts, beside a greedy one that has fewer."""
    wishes: list[dict[str, Any]] = [{"temperature": 1.0, "seed": 5}, {}, {"temperature": 0.7, "top_k": 5, "seed": 9}]
    single, drafting = rig_of(directory, CudaBackend), rig_of(directory, CudaBackend, RECORDED)
    tables = [drafting.table(60) for _ in wishes]
    for rig in (single, drafting):
        rig.run(*(replace(work(TOKENS[9 * s :], t, 0, 7, slot=s), pages=t) for s, t in enumerate(tables)))
    drawn: list[list[int]] = [[], [], []]
    for at in range(7, 8 + DRAFTS):
        works = [answering(tables[s], s, at, 0, **own, **more) for s, own in enumerate(wishes)]
        for told, tokens in zip(drawn, single.run(*works)[0].sampled, strict=True):
            told.extend(tokens)
    for slot, own in enumerate(drawn):
        drafting.runner._memory.drafts[slot] = torch.tensor(own[:DRAFTS])
    counts = (DRAFTS, 1, DRAFTS)
    works = [answering(tables[s], s, 7, counts[s], **own, **more) for s, own in enumerate(wishes)]
    found = drafting.run(*works)[0].sampled
    assert [list(tokens) for tokens in found] == [own[: 1 + count] for own, count in zip(drawn, counts, strict=True)]


@pytest.mark.long
def test_what_is_broken_ends_its_own_request(directory: Path) -> None:
    rig = rig_of(directory, CudaBackend, RECORDED)
    first, second = rig.table(40), rig.table(40)
    rig.run(*(replace(work(TOKENS, t, 0, 12, slot=s), pages=t) for s, t in enumerate((first, second))))
    rig.arena.keys[0][int(first[0]), 3] = float("nan")
    result, _ = rig.run(answering(first, 0, 12, 2), answering(second, 1, 12, 2))
    assert [index for index, _ in result.errors] == [0] and result.sampled[0] == () and result.sampled[1]
    drafts = rig.runner._memory.drafts
    assert bool((drafts >= 0).all()) and bool((drafts < 50).all())


def batches() -> Iterator[tuple[list[int], int]]:
    rng = np.random.default_rng(0)
    for _ in range(30):
        yield rng.integers(1, 4, int(rng.integers(1, 6))).tolist(), int(rng.integers(0, 8))


def test_rows_are_spread_evenly_and_found_again() -> None:
    none = np.empty(0, np.int64)
    for counts, rest in batches():
        every = np.array([*counts, *([rest] if rest else [])])
        total, decodes = int(every.sum()), len(counts)
        starts = 10 * np.arange(len(every))
        positions = np.concatenate([start + np.arange(count) for start, count in zip(starts, every, strict=True)])
        rows = np.arange(total)
        batch = Batch(
            rows, positions, rows + 1, rows % 16, decodes, np.arange(len(every)), starts, every,
            tuple(np.empty(0, np.int32) for _ in every), every, Cuts(none, none), np.append(rows, 0)[: total],
        )  # fmt: skip
        even = spread(batch, DRAFTS, 99)
        assert even.width == (1 if max(counts) == 1 else 3) and even.counts.tolist() == counts
        assert even.batch.tokens[even.batch.asked].tolist() == rows.tolist()
        assert even.batch.positions[even.batch.asked].tolist() == positions.tolist()
        padding = np.setdiff1d(np.arange(len(even.batch.tokens)), even.batch.asked)
        assert (even.batch.page[padding] == 99).all() and len(padding) == even.width * decodes - sum(counts)
        assert even.whole == (len(padding) == 0)
        assert int(even.batch.counts.sum()) == len(even.batch.tokens)


def test_drafts_are_chosen_among_the_first_words_by_a_copy_of_the_head_in_fp8(directory: Path) -> None:
    """A head in float32, as in tests, is not copied: kernels and plain torch draft the same then."""
    config, table = HybridConfig.from_file(directory), torch.randn(300, 256)
    backend = CudaBackend(config, torch.bfloat16, torch.device("cpu"))
    few = backend.words(backend.linear(table.bfloat16()), 256)
    assert few.width == 256 and isinstance(few.weight, Scaled)
    assert float((few.weight.unpacked(torch.float32) - table[:256]).norm() / table[:256].norm()) < 0.04
    whole = backend.words(backend.linear(table), 256)
    assert whole.weight.dtype == torch.float32 and torch.equal(whole.weight, table[:256])
