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

from stepwell.engine.batching import Layout, lay_out  # noqa: E402
from stepwell.engine.wishes import Wishes  # noqa: E402
from stepwell.model.backend import Output, Prepared  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.cuda.prompt_graphs import Piece, PromptGraphs, Room  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.ops.triton.chunked import PAD  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import Cut, FromImage, Sample, Step, Work  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import TOKENS, written  # noqa: E402

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

    for passes in (backend._prompts_of._passes, backend._decodes_of._passes):
        for size, passed in list(passes.items()):
            passes[size] = replace(passed, compute=partial(run, passed.compute))


def test_passes_of_one_step_keep_their_results_though_they_share_memory(tmp_path: Path) -> None:
    rigs = rig_of(tmp_path, Prepared((2,), (64,), 8)), rig_of(tmp_path)
    overwriting(rigs[0])
    tables = [rigs[0].table(30) for _ in range(3)]
    same(rigs, (work(TOKENS, tables[0], 0, 5), work(TOKENS, tables[1], 0, 7, slot=1)))
    beside = work(TOKENS, tables[0], 5, 6), work(TOKENS, tables[1], 7, 9, slot=1), work(TOKENS, tables[2], 0, 3, slot=2)
    same(rigs, beside)
    same(rigs, (work(TOKENS, tables[0], 6, 7, sample=TALL), work(TOKENS, tables[1], 9, 11, slot=1)))


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
    room = Room(192)
    tokens = np.arange(100)
    piece = Piece(192, 16, tokens, tokens + 7, tokens % 16, 144, 5, (48, 80), 3, (1, 2, 3, 4, 5, 6))
    inputs = torch.from_numpy(room.inputs(piece, 16, page=99, slot=8))
    rows, chunks, numbers = room.split(inputs)
    assert rows[0, 16:116].tolist() == tokens.tolist() and rows[1].tolist() == list(range(128, 320))
    assert set(rows[2, :16].tolist()) == set(rows[2, 116:].tolist()) == {99}
    ends, slot, last, pages, length, asked, lead = numbers[:7].tolist()
    assert ends == [0, 3] and (slot[0], last[0], pages[0], length[0], asked[0], lead[0]) == (5, 116, 16, 244, 115, 16)
    assert numbers[7:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    first, count, column = chunks[:3].tolist()
    # tokens up to 48, up to 80 and the rest, then padding before and behind
    assert list(zip(first, count, column, strict=True))[:6] == [
        (16, 48, 0), (64, 32, 1), (96, 20, -1), (0, 16, PAD), (116, 64, PAD), (180, 12, PAD),
    ]  # fmt: skip
    assert set(zip(first[6:], count[6:], column[6:], strict=True)) == {(0, 0, PAD)}
    assert all(part.data_ptr() % 16 == inputs.data_ptr() % 16 for part in (*rows, *chunks, *numbers))


def test_windows_end_at_their_multiples_and_hold_a_few_cuts_each(tmp_path: Path) -> None:
    rig = rig_of(tmp_path)
    backend: Any = rig.recorder.backend
    graphs = PromptGraphs(backend, rig.runner._memory, (128,), True)
    pages = np.arange(40, dtype=np.int32)
    cuts = [Cut(at, pages) for at in (112, 144, 160, 176, 192, 208, 400)]
    one, other = (
        work(np.zeros(500, np.int32), pages, 96, 420, cuts=cuts),
        work(np.zeros(500, np.int32), pages, 0, 3, slot=1),
    )
    batch = lay_out(Step((one, other)), Layout(16, 60, False, True), Wishes(3)).batch
    pieces = list(graphs.pieces(batch))
    assert [(p.lead, p.start, len(p.tokens)) for p in pieces] == [
        (96, 96, 32), (0, 128, 64), (64, 192, 64), (0, 256, 128), (0, 384, 36), (0, 0, 3),
    ]  # fmt: skip
    assert [(p.cuts, p.column) for p in pieces] == [
        ((16,), 0),
        ((16, 32, 48, 64), 1),
        ((16,), 5),
        ((), 0),
        ((16,), 6),
        ((), 0),
    ]
    assert [p.settings is None for p in pieces] == [True] * 4 + [False, False]


def test_what_could_not_be_recorded_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of(tmp_path)
    backend: Any = rig.recorder.backend

    def failing(forward: Any) -> Output:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        backend.prepare(rig.runner._memory, failing, Prepared((1,), (64,), 5))
    assert backend._prompts_of is None and backend._decodes_of is None
    pages = rig.table(20)
    assert rig.run(work(TOKENS, pages, 0, 3))[0].sampled[0] and rig.run(work(TOKENS, pages, 3, 4))[0].sampled[0]
    monkeypatch.setattr(PromptGraphs, "record", lambda self, recorder: None)
    backend.prepare(rig.runner._memory, rig.recorder.decoder.compute, Prepared((), (64,), 5))
    assert backend._prompts_of is not None
    backend.prepare(rig.runner._memory, rig.recorder.decoder.compute, Prepared((), (), 5))
    assert backend._prompts_of is None
