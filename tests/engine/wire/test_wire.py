"""Steps, results, moves and reports cross the wire as they are; a decode says little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.cache.moves import Divide, Extent, Forget, LiveState, Move, Name, Report, Task, Tier, Touch
from stepwell.engine.wire.link import Endpoint, WiredMover, WiredRunner
from stepwell.engine.wire.moves import read_reports, read_tasks, write_reports, write_tasks
from stepwell.engine.wire.steps import StepReader, StepWriter, read_result, write_result
from stepwell.sched.request import SamplingParams, Scored
from stepwell.sched.step import Done, Runner, Step, StepResult
from stepwell.testing.faults import ManualMover, no_copy
from tests.cache.builders import join, numbers
from tests.sched.rig import Rig


def same(one: Any, other: Any) -> bool:
    """Whether two values of plain data are equal, arrays included."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    if is_dataclass(one):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Crossing:
    """A runner whose steps are written, read and compared; it runs what was read, and later looks at what it has read before."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.sizes: list[int] = []
        self._writer, self._reader = StepWriter(), StepReader()
        self.read: list[tuple[Step, Step]] = []

    def launch(self, step: Step) -> Done:
        data = self._writer.write(step)
        read = self._reader.read(data)
        self.read.append((step, read))
        assert all(same(*pair) for pair in self.read[-3:]), "what was read stays as it is"
        self.sizes.append(len(data))
        return Done(self.inner.launch(read).result())


def crossing(**options: Any) -> tuple[Rig, Crossing]:
    rig = Rig(**options)
    wire = Crossing(rig.runner.inner)
    rig.runner.inner = wire  # type: ignore[assignment]
    return rig, wire


@pytest.mark.parametrize("ahead", [False, True])
def test_steps_come_out_as_they_went_in(ahead: bool) -> None:
    rig, wire = crossing(ahead=ahead, pages=20, host=40, budget=32, seqs=3)
    prompt = numbers(30)
    looking = SamplingParams(24, presence_penalty=1.0, stop_token_ids=(4, 5))
    for turn in range(3):
        rig.submit(f"plain {turn}", prompt, max_tokens=30, salt="a" * (turn % 2))
        rig.submit(f"looking {turn}", join(prompt, numbers(9, turn)), params=looking)
        rig.submit(f"scored {turn}", numbers(11, 8), params=SamplingParams(19, prompt_logprobs=2), read=False)
        rig.run()
    assert len(wire.sizes) > 40 and rig.loop.stats().preemptions
    rig.drained()


def test_an_id_and_a_slot_that_are_used_again_are_another_sequence() -> None:
    rig, _ = crossing(ahead=True, seqs=1)
    params = SamplingParams(9, presence_penalty=1.0)
    for start in range(4):
        rig.submit("a", numbers(14, start), params=params)
        for _ in range(6):
            rig.step()
        rig.loop.abort("a")
        rig.run()


def test_64_decodes_take_less_than_a_kibibyte() -> None:
    rig, wire = crossing(pages=1200, host=0, seqs=64, budget=2000, block=16, grid=16, rolling=16, ahead=True)
    for number in range(64):
        rig.submit(f"request-{number:032}", numbers(20 + number % 16, number), max_tokens=60)
    rig.run()
    assert max(wire.sizes[10:50]) < 1024


def test_answers_that_go_on_are_read_as_the_same_objects() -> None:
    """By which what lays out a step knows that they are the same (`stepwell.engine.compute.wishes.Going`)."""
    rig, wire = crossing(pages=1200, host=0, seqs=8, budget=2000, block=16, grid=16, rolling=16, ahead=True)
    for number in range(8):
        rig.submit(f"request-{number:032}", numbers(17, number), max_tokens=50)
    rig.run()
    steps = [read.decodes for _, read in wire.read[10:40]]
    for column in ("names", "slots", "params"):
        assert len({id(getattr(decodes, column)) for decodes in steps}) == 1


def test_a_step_that_names_unknown_values_is_refused() -> None:
    rig, _ = crossing()
    rig.submit("a", numbers(30), max_tokens=9)
    steps: list[bytes] = []
    writer = StepWriter()
    real = rig.runner.inner.launch
    rig.runner.inner.launch = lambda step: (steps.append(writer.write(step)), real(step))[1]  # type: ignore[method-assign]
    rig.run()
    with pytest.raises((msgspec.DecodeError, KeyError)):
        StepReader().read(steps[-1])


@pytest.mark.parametrize("read", [StepReader().read, read_result, read_tasks, read_reports])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x90"])
def test_other_bytes_are_refused(read: Callable[[bytes], object], data: bytes) -> None:
    if data == b"\x90" and read in (read_tasks, read_reports):
        assert read(data) == []
        return
    with pytest.raises(msgspec.MsgspecError):
        read(data)


def test_a_result_comes_out_as_it_went_in() -> None:
    scored = (Scored(-1.5, ((3, -0.25), (4, -2.0))),)
    logits = np.arange(5, dtype=np.float32)
    result = StepResult(((7,), (), (9,)), ((1, "not finite"),), ((0, scored),), ((2, scored * 3),), ((0, logits),))
    assert same(read_result(write_result(result)), result)


slots = st.lists(st.integers(0, 1 << 20), max_size=5).map(lambda x: np.array(x, np.int32))
extents = st.builds(Extent, st.sampled_from(Tier), slots)
digests = st.binary(min_size=8, max_size=16)
names = st.builds(Name, digests, digests, digests, st.integers(0, 1 << 30), st.integers(0, 1 << 30))
targets = extents | st.builds(LiveState, st.integers(0, 63))
moves = st.builds(
    Move, st.integers(-9, 1 << 40), st.sampled_from(["kv", "image"]), extents, targets, st.integers(0, 1 << 30),
    st.lists(names, max_size=3).map(tuple),
)  # fmt: skip
divides = st.builds(Divide, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), digests)
tasks = moves | st.builds(Forget, slots) | st.builds(Touch, slots) | divides


@given(st.lists(tasks, max_size=5))
def test_tasks_come_out_as_they_went_in(given_tasks: list[Task]) -> None:
    assert same(read_tasks(write_tasks(given_tasks)), given_tasks)


@given(st.lists(st.builds(Report, st.integers(-9, 1 << 40), st.booleans(), st.text(), st.floats(0, 1e9)), max_size=5))
def test_reports_come_out_as_they_went_in(reports: list[Report]) -> None:
    assert read_reports(write_reports(reports)) == reports


def test_a_loop_over_the_wire_serves() -> None:
    rig = Rig(ahead=True)
    endpoint = Endpoint(rig.runner.inner, rig.mover)
    rig.runner.inner = WiredRunner(endpoint)  # type: ignore[assignment]
    rig.loop._mover = WiredMover(endpoint)
    for turn in range(3):
        assert rig.ask(f"{turn}", numbers(40), max_tokens=9).cached == (36 if turn else 0)
    rig.drained()


def test_waiting_reaches_the_mover() -> None:
    waited: list[float] = []
    mover = ManualMover(no_copy)
    mover.wait = waited.append  # type: ignore[method-assign]
    WiredMover(Endpoint(None, mover)).wait(0.5)  # type: ignore[arg-type]
    assert waited == [0.5]
