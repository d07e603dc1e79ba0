"""The bound against a plain set, and rungs against a plain dictionary of prefixes."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.replay.bound import Bound, Marks, excess_prefill, share, share_with_rungs
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import Conversation, Run, Stream, Trace, Turn


def conversation(*turns: tuple[int, tuple[Run, ...]], name: str = "a") -> Conversation:
    made = tuple(Turn(float(i), n, 1, 0.0, runs) for i, (n, runs) in enumerate(turns))
    return Conversation(name, 64, (Stream(0.0, made),))


def plain_share(trace: Trace) -> float:
    """The definition, word for word, on Python sets."""
    hit = total = 0
    for told in trace.conversations:
        seen: set[int] = set()
        for stream, index in told.in_time_order():
            turn = told.streams[stream].turns[index]
            ids = turn.ids().tolist()
            lead = next((i for i, x in enumerate(ids) if x not in seen), len(ids))
            hit += min(lead * told.block, turn.prompt - 1)
            total += turn.prompt
            seen.update(ids)
    return hit / total


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic(12, 7, Shape(scale=0.1, branch=0.2, agents=0.05))


def test_the_bound_is_the_leading_run_of_seen_blocks(trace: Trace) -> None:
    assert share(trace.conversations) == pytest.approx(plain_share(trace), abs=1e-12)


def test_a_prompt_seen_whole_still_computes_its_last_token() -> None:
    bound = Bound()
    told = conversation((128, ((1, 2),)), (128, ((1, 2),)))
    first, second = told.streams[0].turns
    assert [bound.add(told, first), bound.add(told, second)] == [0, 127]


def test_conversations_and_editions_have_sets_of_their_own() -> None:
    bound = Bound()
    a, b = conversation((128, ((1, 2),))), conversation((128, ((1, 2),)), name="b")
    turn = a.streams[0].turns[0]
    assert [bound.add(a, turn), bound.add(b, turn), bound.add(a, turn, edition=1)] == [0, 0, 0]


def test_only_requests_that_were_sent_count_as_seen() -> None:
    told = conversation((640, ((1, 10),)), (1280, ((1, 20),)), (1920, ((1, 30),)))
    bound = Bound()
    turns = told.streams[0].turns
    bound.add(told, turns[0])
    assert bound.add(told, turns[2]) == 640


def test_marks_against_a_plain_set() -> None:
    draw = np.random.default_rng(0)
    marks, plain = Marks(), set[int]()
    for _ in range(300):
        runs = tuple((int(draw.integers(0, 3000)), int(draw.integers(1, 40))) for _ in range(3))
        ids = [i for first, count in runs for i in range(first, first + count)]
        lead = next((i for i, x in enumerate(ids) if x not in plain), len(ids))
        within = int(draw.integers(0, len(ids) + 1))
        last = max((i + 1 for i, x in enumerate(ids[:within]) if x in plain), default=0)
        assert marks.leading(runs) == lead
        assert marks.last(runs, within) == last
        marks.add(runs[:2])
        plain.update(ids[: sum(count for _, count in runs[:2])])


@pytest.mark.parametrize(
    ("prompt_end", "interval", "branches"),
    [(True, None, False), (True, 512, False), (True, 512, True), (False, 512, False), (False, None, True)],
)
def test_rungs_against_prefixes_written_out(
    trace: Trace, prompt_end: bool, interval: int | None, branches: bool
) -> None:
    hit = total = 0
    for told in trace.conversations:
        kept: set[tuple[int, ...]] = set()
        rungs: set[tuple[int, ...]] = set()
        for stream, index in told.in_time_order():
            turn = told.streams[stream].turns[index]
            ids = tuple(turn.ids().tolist())
            most = (turn.prompt - 1) // 64
            reach = max(n for n in range(most + 1) if n == 0 or ids[:n] in kept)
            hit += 64 * max((n for n in range(reach + 1) if ids[:n] in rungs), default=0)
            total += turn.prompt
            fronts = [ids[:n] for n in range(1, len(ids) + 1)]
            kept.update(fronts)
            if prompt_end and most:
                rungs.add(ids[:most])
            if interval is not None:
                rungs.update(front for front in fronts if len(front) * 64 % interval == 0)
            if branches and reach:
                rungs.add(ids[:reach])
    found = share_with_rungs(trace.conversations, prompt_end=prompt_end, interval=interval, branches=branches)
    assert found == pytest.approx(hit / total, abs=1e-12)


def test_more_rungs_never_reuse_less(trace: Trace) -> None:
    ends = share_with_rungs(trace.conversations)
    both = share_with_rungs(trace.conversations, interval=512)
    all_three = share_with_rungs(trace.conversations, interval=512, branches=True)
    assert 0 < ends <= both <= all_three <= share(trace.conversations)


def test_excess_is_over_the_least_prefill() -> None:
    assert excess_prefill(recomputed=120, prompt=1000, bound=900) == pytest.approx(0.2)
    assert excess_prefill(recomputed=100, prompt=1000, bound=900) == 0.0
    assert excess_prefill(0, 0, 0) == 0.0
