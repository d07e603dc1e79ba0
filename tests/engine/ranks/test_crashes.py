"""One of two ranks is killed at points of a step and of a write to disk; the next start finds nothing wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from stepwell.store.disk.files import POINTS
from tests.engine.ranks.crashes import LEFT_OUT, STEP_POINTS, Kill, Lives


def all_is_well_after(place: Path, *kills: Kill) -> Lives:
    lives = Lives.of(place, len(kills) + 1)
    for kill in kills:
        lives.live(kill)
    lives.live(None)
    assert not lives.faults and not lives.wrong
    assert lives.deaths.keys() == {kill.point for kill in kills} and lives.lived == 1
    return lives


def test_a_rank_that_dies_within_a_write_leaves_a_disk_that_can_be_read(tmp_path: Path) -> None:
    all_is_well_after(tmp_path, Kill("write.half", 3))


@pytest.mark.long
@pytest.mark.by_hand
def test_a_rank_may_die_at_any_point_of_a_step(tmp_path: Path) -> None:
    lives = all_is_well_after(tmp_path, *(Kill(point, 9, rank=i % 2) for i, point in enumerate(STEP_POINTS)))
    assert lives.resumed


@pytest.mark.long
@pytest.mark.by_hand
def test_a_rank_may_die_at_any_stage_of_a_write(tmp_path: Path) -> None:
    points = (
        "segment.made",
        "write.before",
        "verify.after",
        "sync.before",
        "insert.before",
        "insert.after",
        "commit.after",
    )
    lives = all_is_well_after(tmp_path, *(Kill(point, 1) for point in points))
    assert lives.resumed


@pytest.mark.long
@pytest.mark.parametrize("fault", ["disk:enospc:after=100KiB", "fail:*:*->disk", "fail:*:*->host:chance=0.5"])
def test_what_one_rank_cannot_write_is_found_on_none(fault: str, tmp_path: Path) -> None:
    lives = Lives.of(tmp_path, 2)
    lives.live(None, (fault,))
    lives.live(None)
    assert not lives.faults and not lives.wrong and lives.lived == 2


def test_points_that_are_left_out_exist() -> None:
    assert set(LEFT_OUT) < set(POINTS)
