"""Recorded passes of prompts, computed anew here instead of replayed: padding, cuts, prompts beside decodes, windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.engine.compute.batching import Layout, lay_out  # noqa: E402
from stepwell.engine.compute.wishes import Wishes  # noqa: E402
from stepwell.model.backend import Output, Prepared  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.cuda.prompt_graphs import CUTS, SEQUENCES, Part, Piece, PromptGraphs, Room  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.ops.triton.chunked import PAD  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import Cut, FromImage, Sample, Step, Work  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402

WARM = Sample(SamplingParams(temperature=1.0, seed=3), 0)
TALL = Sample(SamplingParams(logit_bias=((7, 90.0),)), 0)


def rig_of(directory: Path, wanted: Prepared | None = None, **more: object) -> Rig:
    rig = Rig(dummy_decoder(written(directory, **more), torch.float32, make=CudaBackend), pages=80)
    # what is spare is finite, as it is where memory starts as zeros
    for memory in (*rig.arena.keys, *rig.arena.values):
        memory[-1] = 0
    rig.live.recurrent[:, -1], rig.live.conv[:, -1] = 0, 0
    if wanted is not None:
        rig.recorder.backend.prepare(rig.runner._memory, rig.recorder.decoder.compute, wanted)  # type: ignore[arg-type]
    return rig


def same(rigs: tuple[Rig, Rig], works: tuple[Work, ...]) -> None:
    found, expected = (rig.run(*works) for rig in rigs)
    assert found[0].sampled == expected[0].sampled
    for mine, other in zip(found[1], expected[1], strict=True):
        if mine is not None and other is not None:
            assert mine.isfinite().all()
            assert float((mine - other).abs().max()) < 2e-5


@pytest.mark.long
def test_a_padded_prompt_equals_one_as_it_comes_and_writes_nowhere_else(tmp_path: Path) -> None:
    rigs = rig_of(tmp_path, Prepared((2,), (64,), 8)), rig_of(tmp_path)
    pages, others = rigs[0].table(60), rigs[0].table(40)
    images = [rigs[0].image() for _ in range(2)]
    same(rigs, (work(TOKENS, pages, 0, 27, cuts=[Cut(16, images[0]), Cut(20, images[1])]),))
    same(rigs, (work(TOKENS, pages, 27, 28), work(TOKENS, others, 0, 9, slot=2, sample=WARM)))
    # one that goes on from a rung, over pages that are not to be written, and one whose logits are looked at, beside a decode
    again = work(TOKENS, pages, 16, 24, FromImage(images[0]), slot=1, write_from=24)
    same(rigs, (work(TOKENS, pages, 28, 29), again, work(TOKENS, others, 9, 11, slot=2, sample=TALL)))
    same(rigs, (replace(work(TOKENS, others, 11, 13, slot=2), sample=None),))
    for image in images:
        mine, other = (rig.live.as_images(rig.arena.get(image)) for rig in rigs)
        assert float((mine.recurrent - other.recurrent).abs().max()) < 1e-5
        assert float((mine.conv - other.conv).abs().max()) < 1e-5
    written_alike = (rigs[0].arena.rows == 0xFF).all(1) == (rigs[1].arena.rows == 0xFF).all(1)
    assert written_alike.all()
    assert rigs[0].live.recurrent[:, 3:5].isnan().all()


def overwriting(rig: Rig) -> None:
    """Have each recorded pass write over what the ones before it have left, as graphs do that share their memory."""
    backend: Any = rig.recorder.backend
    left: list[torch.Tensor] = []

    def run(compute: Callable[[], Output]) -> Output:
        for tensor in left:
            tensor.fill_(-7)
        output = compute()
        left[:] = [output.hidden, output.logits, *([output.tokens] if output.tokens is not None else [])]
        return output

    for passes in (backend._prompts_of._passes, backend._decodes_of[1]._passes):
        for size, passed in list(passes.items()):
            passes[size] = replace(passed, compute=partial(run, passed.compute))


@pytest.mark.long
def test_passes_of_one_step_keep_their_results_though_they_share_memory(tmp_path: Path) -> None:
    rigs = rig_of(tmp_path, Prepared((2,), (64,), 8)), rig_of(tmp_path)
    overwriting(rigs[0])
    tables = [rigs[0].table(30) for _ in range(3)]
    same(rigs, (work(TOKENS, tables[0], 0, 5), work(TOKENS, tables[1], 0, 7, slot=1)))
    beside = work(TOKENS, tables[0], 5, 6), work(TOKENS, tables[1], 7, 9, slot=1), work(TOKENS, tables[2], 0, 3, slot=2)
    same(rigs, beside)
    same(rigs, (work(TOKENS, tables[0], 6, 7, sample=TALL), work(TOKENS, tables[1], 9, 11, slot=1)))


@pytest.mark.long
def test_in_windows_a_prompt_is_the_same_to_the_bit_however_it_is_divided(tmp_path: Path) -> None:
    found = []
    for ends in ([140], [64, 140]):
        rig = rig_of(tmp_path, Prepared((), (128,), 10, fixed=True))
        pages, image = rig.table(160), rig.image()
        for at, end in zip([0, *ends], ends, strict=False):
            rig.run(work(TOKENS, pages, at, end, cuts=[Cut(64, image)] if at < 64 <= end else []))
        found.append((rig.recorder.last[0].clone(), rig.live.recurrent[:, 0].clone()))
    # resumed at the rung, with another prompt beside it, on pages of its own behind the shared ones
    own, other = np.concatenate((pages[:4], rig.table(96))), rig.table(20)
    rig.run(work(TOKENS, own, 64, 140, FromImage(image), slot=1), work(TOKENS[7:], other, 0, 18, slot=2))
    found.append((rig.recorder.last[0], rig.live.recurrent[:, 1]))
    for logits, state in found[1:]:
        assert torch.equal(logits, found[0][0]) and torch.equal(state, found[0][1])


def test_inputs_lie_where_the_pass_reads_them() -> None:
    room = Room(192, 3)
    tokens, more = np.arange(60), np.arange(40) + 500
    one = Part(tokens, tokens + 7, tokens % 16, 144, 5, (48,))
    two = Part(more, more + 9, more % 16, 16, 2, (16, 40), (1, 2, 3, 4, 5, 6))
    inputs = torch.from_numpy(room.inputs(Piece(192, 16, (one, two), 3), 16, page=99, slot=8))
    rows, chunks, cut_rows, numbers = room.split(inputs)
    assert rows[0, 16:76].tolist() == tokens.tolist() and rows[0, 76:116].tolist() == more.tolist()
    assert rows[1, 16:76].tolist() == list(range(144, 204)) and rows[1, 76:116].tolist() == list(range(16, 56))
    assert rows[2, 16:76].tolist() == (tokens + 7).tolist() and rows[3, 76:116].tolist() == (more % 16).tolist()
    assert set(rows[2, :16].tolist()) == set(rows[2, 116:].tolist()) == {99}
    before = rows[4].tolist()
    assert (before[16], before[76]) == (0, 1) and before[17:76] == list(range(19, 78)), (
        "behind a row for each of three slots"
    )
    assert cut_rows.tolist() == [63, 91, 115, 0, 0, 0]
    whole, ends, slot, last, pages, length, start, drawers, asked = (row[:3].tolist() for row in numbers[:9])
    assert whole[:2] == [16, 116] and [*ends, int(numbers[1, 3])] == [0, 2, 4, 4]
    assert (slot, last, pages, length) == ([5, 2, 8], [76, 116, 116], [13, 4, 0], [204, 56, 1])
    assert start == [144, 16, 0]
    assert (drawers, asked) == ([2, 8, 8], [115, 0, 0]), "only the second prompt draws"
    assert numbers[9:, 0].tolist() == [1, 2, 3, 4, 5, 6] and not numbers[9:, 1:].any()
    first, count, column, begin, own = chunks.tolist()
    # each prompt up to its cuts and the rest, then padding before and behind
    assert list(zip(first, count, column, begin, own, strict=True))[:7] == [
        (16, 48, 0, 16, 5), (64, 12, -1, 16, 5), (76, 16, 1, 76, 2), (92, 24, 2, 76, 2),
        (0, 16, PAD, 116, 8), (116, 64, PAD, 116, 8), (180, 12, PAD, 116, 8),
    ]  # fmt: skip
    assert set(zip(first[7:], count[7:], column[7:], strict=True)) == {(0, 0, PAD)}
    assert all(part.data_ptr() % 16 == inputs.data_ptr() % 16 for part in (*rows, *chunks, *numbers))


def test_chunks_have_room_for_the_worst_case() -> None:
    for rows in (64, 128, 4096):
        room = Room(rows, SEQUENCES)
        share = rows // SEQUENCES - 3
        ones = [Part(np.zeros(share, np.int64), np.zeros(share), np.zeros(share), 0, slot, (1,)) for slot in range(3)]
        cuts = tuple(range(1, CUTS - 2))
        last = Part(np.zeros(share, np.int64), np.zeros(share), np.zeros(share), 0, 3, cuts)
        chunks = room.split(torch.from_numpy(room.inputs(Piece(rows, 5, (*ones, last)), 16, 9, 9)))[1]
        sizes, columns = chunks[1], chunks[2]
        assert int(sizes.sum()) == rows and columns[-1] == PAD and sizes[-1] == 0
        assert sorted(columns[columns >= 0].tolist()) == list(range(CUTS))


def test_prompts_share_a_pass_while_they_fit_and_the_weights_are_read_twice_at_most(tmp_path: Path) -> None:
    rig = rig_of(tmp_path)
    backend: Any = rig.recorder.backend
    graphs = PromptGraphs(backend, rig.runner._memory, (64, 128), False)
    pages = np.arange(40, dtype=np.int32)

    def batch(*prompts: tuple[int, int]) -> Any:
        works = []
        for slot, (count, rungs) in enumerate(prompts):
            cuts = [Cut(1 + at, pages) for at in range(rungs)]
            works.append(work(np.zeros(500, np.int32), pages, 0, count, cuts=cuts, slot=slot))
        decode = work(np.zeros(500, np.int32), pages, 3, 4, slot=11)
        return lay_out(Step((decode, *works)), Layout(16, 60, False), Wishes(12)).batch

    def passes(*prompts: tuple[int, int]) -> list[tuple[int, list[int], int]]:
        one = batch(*prompts)
        assert graphs.fit(one)
        return [(p.rows, [len(part.tokens) for part in p.parts], p.column) for p in graphs.pieces(one)]

    assert passes((20, 0)) == [(64, [20], 0)]
    assert passes((20, 1), (30, 1), (40, 0), (30, 2)) == [(128, [20, 30, 40, 30], 0)]
    assert passes(*[(10, 1)] * 6) == [(64, [10] * 4, 0), (64, [10] * 2, 4)]
    assert passes((20, 4), (30, 4)) == [(64, [20], 0), (64, [30], 4)]
    for too_much in ([(70, 0), (60, 0)], [(129, 0)], [(5, 0)] * 9, [(20, CUTS + 1)], [(9, 4)] * 3):
        assert not graphs.fit(batch(*too_much)), too_much


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.long
def test_prompts_in_one_pass_equal_prompts_as_they_come(tmp_path: Path, experts: bool) -> None:
    more = EXPERTS if experts else {}
    rigs = rig_of(tmp_path, Prepared((2,), (64,), 8), **more), rig_of(tmp_path, **more)
    overwriting(rigs[0])
    tables, images = [rigs[0].table(60) for _ in range(4)], [rigs[0].image() for _ in range(3)]
    same(rigs, (
        work(TOKENS, tables[0], 0, 27, cuts=[Cut(16, images[0])]),
        replace(work(TOKENS[5:], tables[1], 0, 20, slot=1, cuts=[Cut(4, images[1]), Cut(7, images[2])]), sample=None),
        work(TOKENS[9:], tables[2], 0, 5, slot=2, sample=WARM),
    ))  # fmt: skip
    # one goes on, one resumes another's rung, one is looked at, beside a decode
    resumed = work(TOKENS[5:], np.concatenate((tables[1][:1], tables[3][1:])), 4, 18, FromImage(images[1]), slot=3)
    same(rigs, (
        work(TOKENS, tables[0], 27, 28),
        work(TOKENS[5:], tables[1], 20, 33, slot=1),
        resumed,
        work(TOKENS[9:], tables[2], 5, 15, slot=2, sample=TALL),
    ))  # fmt: skip
    for image in images:
        mine, other = (rig.live.as_images(rig.arena.get(image)) for rig in rigs)
        assert float((mine.recurrent - other.recurrent).abs().max()) < 1e-5
        assert float((mine.conv - other.conv).abs().max()) < 1e-5


def test_windows_end_at_their_multiples_and_hold_a_few_cuts_each(tmp_path: Path) -> None:
    rig = rig_of(tmp_path)
    backend: Any = rig.recorder.backend
    graphs = PromptGraphs(backend, rig.runner._memory, (128,), True)
    pages = np.arange(40, dtype=np.int32)
    cuts = [Cut(at, pages) for at in (112, 144, 160, 176, 192, 208, 224, 240, 400)]
    one, other = (
        work(np.zeros(500, np.int32), pages, 96, 420, cuts=cuts),
        work(np.zeros(500, np.int32), pages, 0, 3, slot=1),
    )
    batch = lay_out(Step((one, other)), Layout(16, 60, False, True), Wishes(3)).batch
    pieces = list(graphs.pieces(batch))
    assert [(p.lead, p.parts[0].start, len(p.parts[0].tokens)) for p in pieces] == [
        (96, 96, 32), (0, 128, 96), (96, 224, 32), (0, 256, 128), (0, 384, 36), (0, 0, 3),
    ]  # fmt: skip
    assert [(p.parts[0].cuts, p.column) for p in pieces if p.cuts] == [
        ((16,), 0), ((16, 32, 48, 64, 80, 96), 1), ((16,), 7), ((16,), 8)
    ]  # fmt: skip
    assert [p.parts[0].settings is None for p in pieces] == [True] * 4 + [False, False]


def test_what_could_not_be_recorded_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of(tmp_path)
    backend: Any = rig.recorder.backend

    def failing(forward: Any) -> Output:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        backend.prepare(rig.runner._memory, failing, Prepared((1,), (64,), 5))
    assert backend._prompts_of is None and not backend._decodes_of
    pages = rig.table(20)
    assert rig.run(work(TOKENS, pages, 0, 3))[0].sampled[0] and rig.run(work(TOKENS, pages, 3, 4))[0].sampled[0]
    monkeypatch.setattr(PromptGraphs, "record", lambda self, recorder: None)
    backend.prepare(rig.runner._memory, rig.recorder.decoder.compute, Prepared((), (64,), 5))
    assert backend._prompts_of is not None
    backend.prepare(rig.runner._memory, rig.recorder.decoder.compute, Prepared((), (), 5))
    assert backend._prompts_of is None
