"""Engines that are killed anywhere in the write path of their disk cache; and a judge that would notice."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.store.disk.files import POINTS
from stepwell.testing import crash
from stepwell.testing.crash import Run, Sums
from stepwell.testing.onfiles import VOCAB, OnFiles
from stepwell.testing.shelves import Verdict, judge
from stepwell.testing.telltale import answer

PROMPT = np.arange(80, dtype=np.int32)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "stepwell")


def served(prompt: Ints = PROMPT) -> Ints:
    return np.concatenate([prompt, np.array(answer(prompt, 4, VOCAB), np.int32)])


_PROGRAM = """
import dataclasses, json, logging, sys
from stepwell.testing.crash import Crashes, working_folder
logging.getLogger("stepwell").setLevel(logging.ERROR)
with working_folder() as place:
    crashes = Crashes(place, seed=1)
    assert not crashes.unreached
    print(json.dumps([dataclasses.asdict(crashes.run()) for _ in range(int(sys.argv[1]))]))
"""


def runs_apart(count: int) -> list[Run]:
    """Runs in a process that has one thread: a child forked from one that has several can hang on what the others held."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(count)], capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    return msgspec.json.decode(done.stdout, type=list[Run])


@pytest.mark.long
def test_two_dozen_kills_leave_nothing_wrong() -> None:
    runs = runs_apart(24)
    sums = Sums.of(runs)
    assert sums == Sums(24, 0, 0, 0), runs
    assert sum(run.died for run in runs) >= 12
    assert len({run.kill.point for run in runs if run.died}) >= 8
    assert sum(run.verdict.records for run in runs) > 0 and sum(run.resumed for run in runs) > 0


def test_some_kills_leave_nothing_wrong() -> None:
    runs = runs_apart(6)
    assert Sums.of(runs) == Sums(6, 0, 0, 0), runs
    assert sum(run.died for run in runs) >= 3


def test_every_point_is_numbered_once() -> None:
    assert len(set(POINTS)) == len(POINTS)


def test_command_ends_with_one_line_of_json() -> None:
    command = [sys.executable, "-m", "stepwell.testing.crash", "--runs", "2", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == {"runs": 2, "wrong_answers": 0, "unverified_visible": 0, "lost_slots": 0}


class TestJudge:
    """What would a fault look like to it?"""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        with OnFiles(tmp_path / "c") as engine:
            engine.say(PROMPT, 4)
            engine.settle()
        return tmp_path / "c"

    def judged(self, folder: Path, tokens: Ints) -> Verdict:
        with OnFiles(folder) as engine:
            return judge(folder, engine.store, [tokens])

    def test_finds_nothing_wrong_where_nothing_is(self, folder: Path) -> None:
        verdict = self.judged(folder, served())
        assert verdict.records >= 2 and (verdict.unverified, verdict.lost_slots) == (0, 0)

    def test_a_record_of_something_never_served_is_unverified(self, folder: Path) -> None:
        other = self.judged(folder, served(PROMPT + 1))
        assert other.unverified == other.records > 0

    def test_a_flipped_byte_is_unverified(self, folder: Path) -> None:
        (segment,) = folder.glob("*/segments/*.seg")
        data = bytearray(segment.read_bytes())
        data[-300] ^= 1
        segment.write_bytes(data)
        assert self.judged(folder, served()).unverified == 1

    def test_a_file_that_nobody_knows_is_lost_room(self, folder: Path) -> None:
        with OnFiles(folder) as engine:
            (segment,) = folder.glob("*/segments/*.seg")
            segment.with_name("00000099.seg").write_bytes(bytes(100))
            assert judge(folder, engine.store, [served()]).lost_slots == 1


def test_a_child_that_hangs_is_told_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "_LIFE", 1)
    monkeypatch.setattr(crash, "_live_and_die", lambda *_: signal.sigtimedwait([], 60))
    with pytest.raises(RuntimeError, match="did not end within 1 s instead of dying"):
        crash._live(tmp_path, [], crash.Kill("any", 1, False))
