"""What is recorded and computed before the first request."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from stepwell.base.errors import ConfigError
from stepwell.engine.config import EngineConfig
from stepwell.engine.worker.compiles import Compiles
from stepwell.engine.worker.warm import prepare, rehearsals, wanted, warm_up
from stepwell.model.backend import Prepared
from stepwell.sched.step import Done, Step, StepResult


def test_passes_are_recorded_up_to_what_a_step_may_hold() -> None:
    usual = wanted(EngineConfig("m", max_num_seqs=20, max_num_batched_tokens=1000), 7)
    assert (
        usual.rows == (1, 2, 4, 8, 16, 20) and usual.prompts == (64, 128, 256, 384, 512, 768, 1024) and usual.width == 7
    )
    assert usual.graphs and not usual.fixed


def test_flags_say_which_graphs_there_are() -> None:
    eager = wanted(EngineConfig("m", enforce_eager=True), 7)
    assert (eager.rows, eager.prompts) == ((), ())
    some = wanted(EngineConfig("m", max_num_seqs=20, cudagraph_capture_sizes=(24, 3, 1, 32)), 7)
    assert some.rows == (1, 3, 20)


@pytest.mark.parametrize("eager", [False, True])
def test_where_answers_are_to_be_the_same_there_is_one_size_of_each_kind(eager: bool) -> None:
    fixed = wanted(EngineConfig("m", max_num_seqs=20, deterministic=True, enforce_eager=eager), 7)
    assert fixed.fixed and fixed.rows == (20,) and len(fixed.prompts) == 1
    assert fixed.graphs is not eager


class Recording:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def launch(self, step: Step) -> Done:
        self.steps.append(step)
        return Done(StepResult(((),) * len(step)))


class Trying:
    """A runner whose recorded passes of prompts fail, or give these logits where others give [1, 0]."""

    def __init__(self, recorded: list[float] | None) -> None:
        self.recorded = recorded
        self.asked: list[Prepared] = []
        self.steps: list[Step] = []

    def prepare(self, asked: Prepared) -> None:
        self.asked.append(asked)
        if asked.prompts and self.recorded is None:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    def launch(self, step: Step) -> Done:
        self.steps.append(step)
        logits = [1.0, 0.0] if step.parts[-1].score or self.recorded is None else self.recorded
        rows = [[1.0, 0.0]] * (len(step) - 1) + [logits]
        told = tuple((i, np.array(row, np.float32)) for i, row in enumerate(rows))
        return Done(StepResult(((),) * len(step), logits=told))


SIZES: Any = SimpleNamespace(
    pages=50,
    max_model_len=10_000,
    geometry=SimpleNamespace(block=16, image_pages=4, rung_grid=64, pages_for=lambda n: -(-n // 16)),
)
GRAPHS = Prepared((1, 2), (64,), 7)


def test_recorded_prompts_are_used_if_they_agree_with_prompts_as_they_come() -> None:
    runner: Any = Trying([0.98, 0.1])
    assert prepare(runner, GRAPHS, SIZES) == () and runner.asked == [GRAPHS]


@pytest.mark.parametrize(
    ("slots", "pages", "counts"), [(2, 50, [100]), (3, 50, [75, 25]), (64, 5, [36, 12]), (64, 3, [32])]
)
def test_two_prompts_in_a_pass_are_tried_where_there_is_room(slots: int, pages: int, counts: list[int]) -> None:
    runner: Any = Trying([1.0, 0.0])
    sizes: Any = SimpleNamespace(**{**vars(SIZES), "pages": pages})
    assert prepare(runner, replace(GRAPHS, rows=(1, slots)), sizes) == ()
    for step in runner.steps[1::2]:
        beside, *prompts = step.parts
        assert [len(work.tokens) for work in prompts] == counts and len(beside.tokens) == 1
        used = np.concatenate([work.pages for work in step.parts])
        assert len(set(used.tolist())) == len(used) and used.max() < pages
        assert len({work.slot for work in step.parts}) == len(step.parts) and max(w.slot for w in step.parts) < slots
    assert [step.parts[-1].score is None for step in runner.steps[1::2]] == [True, False]


@pytest.mark.parametrize("recorded", [None, [0.1, 1.0], [float("nan"), 0.0]])
def test_recorded_prompts_that_fail_are_not_used(
    recorded: list[float] | None, caplog: pytest.LogCaptureFixture
) -> None:
    runner: Any = Trying(recorded)
    assert prepare(runner, GRAPHS, SIZES) == ("prompts: not in graphs, see the log",)
    assert [asked.prompts for asked in runner.asked] == [(64,), ()]
    assert "cosine" in caplog.text or "when stream is capturing)" in caplog.text
    with pytest.raises(ConfigError, match="--deterministic cannot be kept"):
        prepare(Trying(recorded), replace(GRAPHS, fixed=True), SIZES)  # type: ignore[arg-type]


@pytest.mark.parametrize(("slots", "tokens", "pages"), [(1, 64, 5), (32, 8192, 900), (3, 2048, 40)])
def test_warming_up_stays_within_slots_pages_and_tokens(slots: int, tokens: int, pages: int) -> None:
    sizes: Any = SimpleNamespace(
        pages=pages, max_model_len=10_000, geometry=SimpleNamespace(block=16, image_pages=4, rung_grid=64)
    )
    runner = Recording()
    warm_up(runner, sizes, EngineConfig("m", max_num_seqs=slots, max_num_batched_tokens=tokens))
    for step in runner.steps:
        works = step.works
        assert step.tokens <= tokens and len({work.slot for work in works}) == len(works)
        for work in works:
            assert work.slot < slots and work.pages.max() < pages and len(work.pages) * 16 >= work.end
            assert all(cut.pages.max() < pages and work.start < cut.position <= work.end for cut in work.cuts)
    kinds = {(len(step.works[0].tokens) == 1, len(step.works) > 1) for step in runner.steps}
    assert {(True, False), (False, False)} <= kinds and (slots == 1 or kinds >= {(True, True), (False, True)})
    ends = {cut.position == work.end for step in runner.steps for work in step.works for cut in work.cuts}
    assert ends == {True, False}, "rungs of states inside a pass and behind one are left by different kernels"


def test_rehearsals_capture_nothing_and_ask_for_no_log_probabilities() -> None:
    sizes: Any = SimpleNamespace(
        pages=900, max_model_len=10_000, geometry=SimpleNamespace(block=16, image_pages=4, rung_grid=64)
    )
    runner: Any = Recording()
    prepared: list[Prepared] = []
    runner.prepare = prepared.append
    a_little, all_of_it = rehearsals(
        runner, GRAPHS, sizes, EngineConfig("m", max_num_seqs=8, max_num_batched_tokens=8192)
    )
    a_little()
    assert prepared == [replace(GRAPHS, rows=(2,), prompts=(), graphs=False)] and len(runner.steps) == 1
    all_of_it()
    assert prepared[1:] == [replace(GRAPHS, graphs=False)] and len(runner.steps) > 5
    works = [work for step in runner.steps for work in step.works]
    assert all(work.sample is not None and work.sample.params.logprobs is None for work in works)
    assert all(work.tokens.min() >= 0 for work in works), "what was drawn is garbage in a rehearsal"


def test_a_compilation_while_serving_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    knobs = pytest.importorskip("triton.knobs")
    compiles = Compiles()
    told = {"src": SimpleNamespace(name="_row_kernel"), "metadata": {}, "metadata_group": {}, "times": None}
    try:
        compiles.listen()
        listener = knobs.compilation.listener
        with caplog.at_level(logging.WARNING):
            listener(cache_hit=False, **told)
            listener(cache_hit=True, **told)
            assert not caplog.text
            compiles.serve()
            listener(cache_hit=False, **told)
            listener(cache_hit=True, **told)
    finally:
        knobs.compilation.listener = None
    assert (compiles.at_start, compiles.serving) == (1, 1) and "_row_kernel (1 since the start)" in caplog.text


def test_with_drafts_steps_that_verify_some_and_leave_a_rung_among_them_are_tried() -> None:
    recording = Recording()
    warm_up(recording, SIZES, EngineConfig("m", num_speculative_tokens=3))
    drafted = [work for step in recording.steps for work in step.works if work.drafts]
    assert {work.drafts for work in drafted} == {3} and all(work.cuts and work.reach <= 16 for work in drafted)
    assert {work.sample.params.temperature > 0 for work in drafted if work.sample} == {True, False}
