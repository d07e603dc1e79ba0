"""A rank that is killed or hangs ends the engine, with a sentence that names it, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.children import command, environment  # noqa: E402
from stepwell.base.errors import ConfigError, RankError  # noqa: E402
from stepwell.cache.config import Costs  # noqa: E402
from stepwell.engine import build  # noqa: E402
from stepwell.engine.config import EngineConfig, EngineFacts  # noqa: E402
from stepwell.engine.process import private  # noqa: E402
from stepwell.engine.ranks import processes as ranks  # noqa: E402
from stepwell.engine.ranks import shared  # noqa: E402
from stepwell.engine.ranks.channel import pair  # noqa: E402
from stepwell.engine.ranks.watch import Judge  # noqa: E402
from stepwell.engine.ranks.wire import STEP, Begin, Ready, State, encode  # noqa: E402
from stepwell.engine.wire.steps import StepWriter  # noqa: E402
from stepwell.sched.request import Request, SamplingParams  # noqa: E402
from stepwell.sched.step import Step  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402

PROMPT = np.arange(3, 90, dtype=np.int32)
VOCAB = 513


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    model = write_checkpoint(tmp_path_factory.mktemp("model"), hidden=256, layers=4, vocab=VOCAB)
    return EngineConfig(
        str(model),
        device="cpu",
        tensor_parallel_size=2,
        worker_timeout=5.0,
        device_memory=1 << 20,
        host_memory=0,
        max_num_seqs=2,
        max_num_batched_tokens=128,
        max_model_len=2000,
        deterministic=True,
    )


def children() -> dict[int, str]:
    """Processes that this one has started and that have not been waited for, by command; without Python's tracker of shared memory,
    which other tests may have started."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return {pid: command for pid, command in found.items() if "multiprocessing.resource_tracker" not in command}


def ranks_of() -> list[int]:
    return [pid for pid, command in children().items() if "stepwell.engine.ranks.process" in command]


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGKILL, "rank 1 was killed by signal 9"),
        (signal.SIGSTOP, "rank 1 gave no sign of life for 5 s"),
    ],
    ids=["killed", "stopped"],
)
def test_a_rank_that_is_gone_ends_the_engine(config: EngineConfig, number: signal.Signals, sentence: str) -> None:
    facts: list[EngineFacts | str] = []
    loop = build.build_engine(config, facts.append)
    try:
        _, second = sorted(ranks_of())
        loop.submit(Request("open", PROMPT, SamplingParams(max_tokens=1500, ignore_eos=True)))
        for _ in range(3):
            loop.step()
        os.kill(second, number)
        with pytest.raises(RankError, match=sentence):
            while loop.busy:
                loop.step()
        with pytest.raises(RankError, match=sentence):
            loop.stats()  # what an idle engine asks for, too
    finally:
        loop.end(0.0)
    assert not ranks_of() and not [t for t in threading.enumerate() if t.name == "stepwell-ranks"]


HANGS_IN_A_STEP = """
import itertools, threading
from stepwell.engine.ranks import process
real, calls = process.ProcessRanks.sum, itertools.count()

def sum(self, x):
    if self.number == 1 and not self._apart and next(calls) == 100:
        threading.Event().wait()
    return real(self, x)

process.ProcessRanks.sum = sum
process.main()
"""


def test_a_rank_that_hangs_while_it_shows_life_ends_the_engine(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "command", lambda module: [sys.executable, "-P", "-c", HANGS_IN_A_STEP])
    loop = build.build_engine(replace(config, worker_timeout=4.0), lambda told: None)
    unnoticed = threading.Timer(60, lambda: [os.kill(pid, signal.SIGKILL) for pid in children()])
    unnoticed.start()
    try:
        loop.submit(Request("open", PROMPT, SamplingParams(max_tokens=1500, ignore_eos=True)))
        with pytest.raises(RankError, match=r"rank 1 came no further for 4 s while others did \(--worker-timeout\)"):
            while loop.busy:
                loop.step()
    finally:
        unnoticed.cancel()
        loop.end(0.0)
    assert not children()


def test_what_one_rank_cannot_work_with_is_told_as_it_is(config: EngineConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size 3 must divide num_attention_heads = 4"):
        build.build_engine(replace(config, tensor_parallel_size=3), lambda told: None)
    assert not ranks_of()


def test_a_rank_that_is_silent_during_the_start_ends_it(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_within", str(tmp_path))
    monkeypatch.setattr(ranks, "_SILENCE", 0.1)
    monkeypatch.setattr(ranks, "command", lambda module: [sys.executable, "-c", "input(); input()"])
    with ranks.RankProcesses(config, 20, "text") as processes:
        assert [path.name.startswith("stepwell-ranks-") for path in tmp_path.iterdir()] == [True]
        with pytest.raises(RankError, match=r"rank 0 and rank 1 gave no sign of life for 0\.1 s of the start"):
            processes.start(lambda phase: None)
    assert not list(tmp_path.iterdir())


SAYS_IT_IS_READY = """
import json, sys
from stepwell.engine.ranks.channel import Channel
from stepwell.engine.ranks.wire import TOLD
Channel.of(json.loads(sys.stdin.readline())["orders"]).send(TOLD, bytes.fromhex(sys.argv[1]))
"""


def test_orders_do_not_wait_for_a_rank_that_has_gone(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = encode(Ready(1, 1, 1, Costs(), (), "", State({}, {}, None, True, None), (), 0.0)).hex()
    monkeypatch.setattr(ranks, "command", lambda module: [sys.executable, "-c", SAYS_IT_IS_READY, ready])
    monkeypatch.setattr(Judge, "fault", lambda self, ended, now: "")  # nobody has noticed yet
    told: list[str] = []

    def serve() -> None:
        with ranks.RankProcesses(config, 20, "text") as processes:
            processes.start(lambda phase: None)
            for _ in range(3):
                processes.send(STEP, b"", b"")
            told.append("sent")
            monkeypatch.undo()
            with pytest.raises(RankError) as raised:
                processes.result()
            told.append(str(raised.value))

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    serving.join(20)
    assert not serving.is_alive(), f"it waits for ever after {told}"
    assert told[0] == "sent" and "ended with status 0" in told[1]


def test_ranks_that_cannot_be_watched_end(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = encode(Ready(1, 1, 1, Costs(), (), "", State({}, {}, None, True, None), (), 0.0)).hex()
    program = SAYS_IT_IS_READY + "input()"
    monkeypatch.setattr(ranks, "command", lambda module: [sys.executable, "-c", program, ready])
    monkeypatch.setattr(Judge, "fault", lambda self, ended, now: 1 / 0)
    with ranks.RankProcesses(config, 20, "text") as processes:
        processes.start(lambda phase: None)
        with pytest.raises(RankError, match="ranks can be watched no more: ZeroDivisionError"):
            processes.result()


def test_a_rank_whose_engine_was_killed_ends_and_removes_the_folder(config: EngineConfig, tmp_path: Path) -> None:
    folder = tmp_path / "stepwell-ranks-one"
    folder.mkdir()
    (here, orders), (heard, signs) = pair(), pair()
    begin = msgspec.json.encode(Begin(config, 0, str(folder), orders.fileno(), signs.fileno(), 40, "text"))
    # the other rank is not there: this one would wait for it for minutes
    ended = subprocess.run(
        command("stepwell.engine.ranks.process"),
        input=begin + b"\n",
        env=environment(),
        timeout=120,
        pass_fds=(orders.fileno(), signs.fileno()),
    )
    for end in (here, orders, heard, signs):
        end.close()
    assert ended.returncode in (0, -signal.SIGALRM) and not folder.exists()


def test_a_rank_that_computes_something_else_ends_the_engine(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second rank is told to draw where the first takes the likeliest token."""
    writer = StepWriter()

    def misled(self: shared.RanksRunner, step: Step) -> shared._Asked:
        drawn = [replace(params, temperature=5.0, seed=1) for params in step.decodes.params]
        other = replace(step, decodes=replace(step.decodes, params=tuple(drawn)))
        each = self._writer.write(step), writer.write(other)
        for channel, data in zip(self._processes._channels, each, strict=True):
            channel.post(STEP, data)
        return shared._Asked(self._processes)

    monkeypatch.setattr(shared.RanksRunner, "launch", misled)
    loop = build.build_engine(config, lambda told: None)
    try:
        loop.submit(Request("open", PROMPT, SamplingParams(max_tokens=1500, ignore_eos=True)))
        with pytest.raises(RankError, match="rank 1 computed other results than the others within the first"):
            while loop.busy:
                loop.step()
    finally:
        loop.end(0.0)
    assert not ranks_of()
