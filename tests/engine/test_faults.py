"""Faults between an engine and its copies: bits flip where they should, and an engine under faults still answers as a cold one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.cache.moves import Extent, Move, Tier  # noqa: E402
from stepwell.engine.faults import CorruptingMover, faulty_disk, faulty_mover, flipper  # noqa: E402
from stepwell.engine.llm import LLM  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from stepwell.testing.faults import FaultyMover, InstantMover  # noqa: E402
from stepwell.testing.faultspec import parse_faults  # noqa: E402

FOUR = SamplingParams(max_tokens=4, ignore_eos=True)
PAGE = 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    torch.set_num_threads(1)
    yield write_checkpoint(tmp_path_factory.mktemp("model"), hidden=64, layers=4, vocab=512)


def load(ticket: int, *slots: int) -> Move:
    numbers = np.array(slots, np.int32)
    return Move(ticket, "kv", Extent(Tier.HOST, numbers), Extent(Tier.DEVICE, numbers), 16)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_one_bit_of_what_is_read_is_flipped_as_often_as_asked(kind: str) -> None:
    rows = np.zeros((4, PAGE), np.uint8)
    flips = {Tier.HOST: flipper(rows if kind == "numpy" else torch.from_numpy(rows))}
    faults = parse_faults(["corrupt:kv:host:count=2", "corrupt:image:host", "corrupt:kv:device"])
    mover = CorruptingMover(InstantMover(), faults.corruptions, flips, PAGE, random.Random(0))
    for ticket in range(4):
        mover.start([load(ticket, 1, 2)])
    assert np.unpackbits(rows).sum() in (0, 2) and mover.tally[Tier.HOST] == 2
    assert not rows[[0, 3]].any()
    assert [report.ticket for report in mover.poll()] == [0, 1, 2, 3]


def test_what_is_not_asked_for_is_not_there() -> None:
    inner = InstantMover()
    assert faulty_mover(inner, parse_faults([]), {}, PAGE, random.Random(0)) is inner
    assert faulty_mover(inner, parse_faults(["corrupt:kv:host"]), {}, PAGE, random.Random(0)) is inner
    assert isinstance(faulty_mover(inner, parse_faults(["drop:*:*"]), {}, PAGE, random.Random(0)), FaultyMover)
    files, point = faulty_disk(parse_faults(["disk:read-only"]), random.Random(0))
    point("write.half")
    with pytest.raises(OSError, match="ead-only"):
        files.unlink(Path("x"))


def turns(checkpoint: Path, *faults: str, **flags: object) -> tuple[list[tuple[int, ...]], dict[str, int]]:
    """Answers of a few conversations on a small engine, and how often a reason stopped a prompt."""
    sizes = {"device_memory": "1200KiB", "host_memory": "16MiB", "max_num_seqs": 2, "max_num_batched_tokens": 128}
    with LLM(str(checkpoint), device="cpu", **sizes, min_load_tokens=0, faults=faults, **flags) as llm:  # type: ignore[arg-type]
        answers = []
        prompts = [np.arange(5 + i, 155 + i, dtype=np.int32) % 500 + 3 for i in range(4)]
        for _ in range(2):
            for i, prompt in enumerate(prompts):
                answer = llm.generate(prompt, FOUR)[0].token_ids
                answers.append(answer)
                prompts[i] = np.concatenate([prompt, np.array(answer, np.int32)])
        tally = llm.stats().tally
        return answers, {**tally.reasons, "host": tally.host}


@pytest.fixture(scope="module")
def cold(checkpoint: Path) -> list[tuple[int, ...]]:
    return turns(checkpoint, enable_prefix_caching=False)[0]


def test_copies_that_fail_or_are_flipped_in_host_change_no_answer(checkpoint: Path, cold: object) -> None:
    faults = ("fail:*:host->*:chance=0.2:copied=half", "corrupt:*:host:chance=0.5", "duplicate:*:*:chance=0.5")
    answers, seen = turns(checkpoint, *faults)
    assert answers == cold and seen["load_failed(kv)"] + seen["load_failed(state)"] > 0


def test_a_report_that_is_late_holds_a_request_up_for_the_timeout_at_most(checkpoint: Path, cold: object) -> None:
    answers, seen = turns(checkpoint, "delay:*:host->*:seconds=0.5:count=2", load_timeout=0.1)
    assert answers == cold and seen["load_failed(kv)"] + seen["load_failed(state)"] > 0 and seen["host"] > 0


def test_faults_of_a_disk_need_one(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="disk tier"):
        LLM(str(checkpoint), device="cpu", device_memory="1MiB", host_memory="0", faults=("disk:read-only",))


def on_disk(checkpoint: Path, folder: Path, *faults: str) -> list[tuple[int, ...]]:
    """Answers to one prompt, asked twice, of an engine with a disk tier alone below the device."""
    flags = {"device_memory": "4MiB", "host_memory": "0", "max_num_seqs": 2, "disk_cache": f"{folder}:64MiB"}
    prompt = np.arange(3, 203, dtype=np.int32)
    with LLM(str(checkpoint), device="cpu", **flags, min_load_tokens=0, faults=faults) as llm:  # type: ignore[arg-type]
        return [llm.generate(prompt, FOUR)[0].token_ids for _ in range(2)]


def test_a_disk_that_fails_changes_no_answer(checkpoint: Path, tmp_path: Path) -> None:
    good = on_disk(checkpoint, tmp_path / "good")
    assert on_disk(checkpoint, tmp_path / "full", "disk:enospc:after=100KiB") == good
    on_disk(checkpoint, tmp_path / "bad")
    assert on_disk(checkpoint, tmp_path / "bad", "corrupt:*:disk:count=3", "disk:eio-read:after=5:count=2") == good


def test_a_crash_point_kills_the_process_and_the_next_one_answers_as_before(checkpoint: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from tests.engine.test_faults import on_disk\n"
        "on_disk(Path(sys.argv[1]), Path(sys.argv[2]), 'crash:write.half')"
    )
    folder = tmp_path / "cache"
    done = subprocess.run([sys.executable, "-c", program, checkpoint, folder], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert on_disk(checkpoint, folder) == on_disk(checkpoint, tmp_path / "other")
