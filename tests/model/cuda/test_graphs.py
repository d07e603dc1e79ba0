"""Captured passes of decodes, computed anew here instead of replayed: padding, block tables that stay, draws.

`bench/gpu_backend.py` and `bench/gpu_kernels.py` replay them on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.model.backend import Output, Prepared  # noqa: E402
from stepwell.model.batch import Batch, Cuts  # noqa: E402
from stepwell.model.cuda import graphs  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.cuda.graphs import Recorder  # noqa: E402
from stepwell.model.cuda.plans import Drawing, Tables, Uploader  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import LAST_DRAW, Sample, Step, StepResult, Work  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402

LAST = np.full(40, LAST_DRAW, np.int32)


def rig_of(directory: Path, *, sizes: tuple[int, ...] = (), width: int = 4) -> Rig:
    rig = Rig(dummy_decoder(directory, torch.float32, make=CudaBackend), pages=60)
    memory = rig.runner._memory
    rig.recorder.backend.prepare(memory, rig.recorder.decoder.compute, Prepared(sizes, (), width))  # type: ignore[arg-type]
    return rig


@pytest.fixture
def rigs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Rig, Rig]:
    """With passes captured for 1 and 4 rows, and without."""
    directory = written(tmp_path, **getattr(request, "param", {}))
    return rig_of(directory, sizes=(1, 4)), rig_of(directory)


def begun(rig: Rig, slots: tuple[int, ...]) -> list[np.ndarray]:
    """Block tables of prompts of 14 tokens in these slots."""
    tables = [rig.table(40) for _ in slots]
    rig.run(*(work(TOKENS[slot:], table, 0, 14, slot=slot) for slot, table in zip(slots, tables, strict=True)))
    return tables


def decode(table: np.ndarray, slot: int, at: int, params: SamplingParams, known: int) -> Work:
    one = work(LAST, table, at, at + 1, slot=slot, sample=Sample(params, at - 13))
    return replace(one, known=known)


@pytest.mark.parametrize("rigs", [{}, EXPERTS], ids=["dense", "experts"], indirect=True)
@pytest.mark.long
def test_a_smaller_batch_than_its_graph_computes_the_same_and_writes_nowhere_else(rigs: tuple[Rig, Rig]) -> None:
    slots, told = (4, 0, 2), []
    for rig in rigs:
        tables = begun(rig, slots)
        told.append(
            [
                [rig.run(*works)[0].sampled, rig.recorder.last.clone()]
                for at in range(14, 18)  # the second page begins at 16
                for works in [
                    [decode(t, s, at, SamplingParams(), (at + 15) // 16) for s, t in zip(slots, tables, strict=True)]
                ]
            ]
        )
    for captured, plain in zip(*told, strict=True):
        assert captured[0] == plain[0]
        assert float((captured[1] - plain[1]).abs().max()) < 2e-5
    one, other = rigs
    written_alike = (one.arena.rows == 0xFF).all(1) == (other.arena.rows == 0xFF).all(1)
    assert written_alike.all(), "a page was written that is nobody's in this batch"
    untouched = [slot for slot in range(6) if slot not in slots]
    assert one.live.recurrent[:, untouched].isnan().all() and one.live.conv[:, untouched].isnan().all()


WARM = SamplingParams(temperature=1.0, seed=7)


@pytest.mark.long
def test_each_row_draws_as_it_asks_whatever_stands_beside_it(rigs: tuple[Rig, Rig]) -> None:
    params = (WARM, SamplingParams(), SamplingParams(temperature=2.0, top_k=3, top_p=0.9, seed=1))
    looked_at = (WARM, SamplingParams(logit_bias=((9, 50.0),)), params[2])
    found: list[StepResult] = []
    for rig in rigs:
        tables = begun(rig, (0, 1, 2))
        for wishes in (params, looked_at):
            state = rig.live.recurrent.clone(), rig.live.conv.clone()
            draws = rig.runner._memory.draws.clone()
            works = [decode(t, s, 14, wishes[s], 1) for s, t in enumerate(tables)]
            found.append(rig.run(*works)[0])
            for kept, now in zip(
                (*state, draws), (rig.live.recurrent, rig.live.conv, rig.runner._memory.draws), strict=True
            ):
                now.copy_(kept)
    captured, special, eager, eager_special = (result.sampled for result in found)
    assert captured == eager and special == eager_special
    assert special[1] == (9,)
    assert (special[0], special[2]) == (captured[0], captured[2])


@pytest.mark.long
def test_what_was_drawn_is_what_the_next_step_reads(rigs: tuple[Rig, Rig]) -> None:
    answers = []
    for rig in rigs:
        tables = begun(rig, (0, 1))
        steps = [
            [decode(t, s, at, (WARM, SamplingParams())[s], 1) for s, t in enumerate(tables)] for at in (14, 15, 16)
        ]
        answers.append([rig.run(*works)[0].sampled for works in steps])
    assert answers[0] == answers[1]


def batch(slots: list[int], tables: list[list[int]], known: list[int]) -> Batch:
    none, count = np.empty(0, np.int64), len(slots)
    rows = np.zeros(count, np.int64)
    pages, cuts = tuple(np.array(table, np.int32) for table in tables), Cuts(none, none)
    return Batch(rows, rows, rows, rows, count, np.array(slots), rows, rows, pages, np.array(known), cuts, none)


def test_tables_on_the_device_take_what_is_new_and_keep_the_rest() -> None:
    tables = Tables(4, 5, torch.device("cpu"))
    for slots, rows, known in (
        ([0, 2], [[7, 8], [9]], [0, 0]),
        ([0, 2], [[7, 8], [9]], [2, 1]),
        ([2, 0], [[9, 3], [7, 5, 6]], [1, 1]),
    ):
        cells, values = tables.new(batch(slots, rows, known))
        tables.store(torch.from_numpy(cells), torch.from_numpy(values))
    assert len(tables.new(batch([0], [[7, 5]], [2]))[0]) == 0
    assert tables.rows[0, :3].tolist() == [7, 5, 6] and tables.rows[2, :2].tolist() == [9, 3]
    wider = tables.widened(9)
    assert wider.width == 9 and wider.rows[0, :3].tolist() == [7, 5, 6] and not wider.rows[1].any()


class Counted(Uploader):
    """Says what is sent by itself, and what fills a graph's inputs."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.sent: list[str] = []

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        before = len(self.sent)
        found = super().__call__(arrays)
        self.sent[before:] = ["by itself"]
        return found

    def into(self, target: torch.Tensor, arrays: Sequence[np.ndarray]) -> None:
        self.sent.append("inputs")
        super().into(target, arrays)


@pytest.mark.long
def test_a_step_of_decodes_sends_one_copy(rigs: tuple[Rig, Rig]) -> None:
    rig = rigs[0]
    tables = begun(rig, (0, 1, 2))
    backend = rig.recorder.backend
    assert isinstance(backend, CudaBackend)
    backend._upload = counted = Counted()
    for at in (14, 15, 16):
        works = tuple(decode(t, s, at, WARM, (at + 15) // 16) for s, t in enumerate(tables))
        rig.runner.launch(Step(works)).result()
    assert counted.sent == ["inputs"] * 3


def test_a_capture_that_fails_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    current = ["served on"]

    @contextmanager
    def graph(_: object, pool: object) -> Iterator[None]:
        current[0] = "captures"
        try:
            yield
        finally:
            raise RuntimeError("capture was invalidated")  # as torch does, before it gives the stream back

    for name, fake in {
        "synchronize": lambda: None, "CUDAGraph": object, "graph": graph, "current_stream": lambda: current[0],
        "set_stream": lambda stream: current.__setitem__(0, stream),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    output = Output(torch.zeros(1, 2), torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    forward: Any = SimpleNamespace(drawing=Drawing(1, True, torch.zeros(1, dtype=torch.int64), None))
    monkeypatch.setattr(graphs, "replace", lambda one, **changes: SimpleNamespace(draw=lambda logits: output.tokens))
    monkeypatch.setattr(graphs, "settings_from", lambda sent: None)
    with pytest.raises(RuntimeError, match="invalidated"):
        Recorder(lambda _: output, True)(lambda: forward, lambda: (), None)
    assert current == ["served on"]
