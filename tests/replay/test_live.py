"""A replay against real HTTP: the figures of the simulator, and what happens when a server does not play along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError, StepwellError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.replay.command import replay_command
from stepwell.replay.cost import CostModel
from stepwell.replay.formats import read_trace
from stepwell.replay.lanes import LaneRules, Lanes, Timeline
from stepwell.replay.live import LiveReplay, play_live
from stepwell.replay.machine import Machine, MachineSizes
from stepwell.replay.report import Summary
from stepwell.replay.runner import ANSWER_TOKEN
from stepwell.replay.simulate import Phases
from stepwell.replay.simulated import Setting, simulated
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.text import Text
from stepwell.replay.trace import Conversation, Stream, Trace, Turn
from stepwell.replay.wire import Server
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Request
from stepwell.sched.step import Done, Step, StepResult
from stepwell.testing.faults import InstantMover
from tests.engine.scripted import VOCAB
from tests.server.harness import Running, running, tokenizer_directory

RULES = LaneRules(lanes=4, seed=5)
SIZES = MachineSizes(device_tokens=9_000, host_tokens=40_000, rung_tokens=200, block=16, max_num_seqs=8)
SCALE = 0.008
LIVE = Phases(0.6, 3.0)


class AtOnce:
    """A runner that takes no time."""

    def launch(self, step: Step) -> Done:
        return Done(StepResult(tuple(() if work.sample is None else (ANSWER_TOKEN,) for work in step.works)))


class Loop(EngineLoop):
    """An engine loop with nothing to read before a request is submitted, and nothing to put away at its end."""

    @property
    def rest(self) -> float | None:
        return None

    def prepare(self, request: Request) -> bool:
        return True

    def end(self, seconds: float) -> bool:
        return True


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic(40, 9, Shape(scale=0.02, turns=(12, 0.4), output=(300.0, 0.5), agents=0.02, max_prompt=150_000))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(tokenizer_directory(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[Running]:
    imagined = Machine(SIZES, CostModel()).loop
    loop = Loop(imagined.directory.config, imagined.config, AtOnce(), InstantMover(lambda move: None), WallClock())
    with running(tokenizer, loop=loop) as server:
        yield server


def play(trace: Trace, server: Server, phases: Phases = LIVE, scale: float = SCALE) -> Summary:
    source = Timeline(trace) if trace.open_loop else Lanes(trace.conversations, RULES)
    return play_live(LiveReplay(source, server, Text(1, VOCAB - 30), phases, scale), (("lanes", "4"),))


def test_a_live_replay_finds_what_the_simulator_foretold(server: Running) -> None:
    small = synthetic(8, 9, Shape(scale=0.02, turns=(8, 0.3), output=(200.0, 0.5), agents=0.02, max_prompt=150_000))
    rules = LaneRules(lanes=4, start=(0.0, 0.0), seed=5, once=True)
    text, lasting = Text(8, VOCAB - 30), Phases(0.0, 120.0)
    live = play_live(LiveReplay(Lanes(small.conversations, rules), Server(server.url), text, lasting, SCALE), ())
    foretold = simulated(Setting(small, rules, Phases(0.0, 1e5), CostModel()), SIZES)
    assert live.requests == foretold.requests == small.requests
    assert live.admitted.prompt == foretold.admitted.prompt
    assert live.bound == foretold.bound
    assert foretold.excess < 0.5
    assert abs(live.admitted.recomputed - foretold.admitted.recomputed) / live.admitted.prompt <= 0.003
    assert live.failed == 0
    assert live.split


def test_what_answers_do_not_tell_is_read_from_the_metrics(trace: Trace, server: Running) -> None:
    found = play(trace, Server(server.url), Phases(0.0, 2.0))
    admitted = found.admitted
    assert sum(admitted.reasons.values()) >= admitted.admissions > 0
    assert sum(admitted.lost.values()) >= admitted.recomputed > 0
    assert found.rungs is not None
    assert found.rungs.left > 0
    assert all(row.reason == "" for row in found.rows)
    assert found.course.mode == "live"


def single(start: float, prompt: int = 100) -> Stream:
    return Stream(start, (Turn(0.0, prompt, 3, 0.0, ((0, prompt // 64),)),))


def test_single_requests_end_with_their_last_answer(server: Running) -> None:
    trace = Trace((Conversation("once", 64, tuple(single(float(i)) for i in range(4))),), open_loop=True)
    found = play(trace, Server(f"{server.url}/v1"), Phases(0.0, 300.0), 0.05)
    assert (found.played, found.requests, found.failed) == (4, 4, 0)
    assert found.answered == 12
    assert found.bound == 3 * 64
    assert all(row.ttft is not None and row.ttft > 0 for row in found.rows)
    assert found.course.end_s < 60


WORDS = "How deep is it? " * 30


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": WORDS, "max_tokens": 5},
        {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 5},
        {"messages": [{"role": "user", "content": WORDS}], "system": "Be brief.", "max_tokens": 5},
        {"input": WORDS, "instructions": "Be brief.", "max_output_tokens": 5},
    ],
    ids=["completions", "chats", "messages", "responses"],
)
def test_logged_requests_are_sent_as_they_were(tmp_path: Path, server: Running, body: dict[str, Any]) -> None:
    salt = str(tmp_path)
    line = json.dumps({**body, "cache_salt": salt, "session_id": "s"})
    (tmp_path / "calls.jsonl").write_text(f"{line}\n{line}\n")
    logged = read_trace(tmp_path / "calls.jsonl")
    source = Lanes(logged.conversations, LaneRules(lanes=1, start=(0.0, 0.0), once=True))
    found = play_live(LiveReplay(source, Server(server.url), Text(1), Phases(0.0, 60.0)), ())
    assert (found.requests, found.failed, found.answered) == (2, 0, 10)
    first, second = found.rows
    assert first.prompt == second.prompt > 100 and all(row.ttft is not None for row in found.rows)
    assert second.recomputed < first.recomputed == first.prompt
    told = logged.conversations[0].streams[0].turns[1]
    assert abs(second.bound / second.prompt - 64 * told.blocks / told.prompt) < 0.02, (
        "the bound follows the server's own count of tokens"
    )


def test_the_command_line_drives_a_server(tmp_path: Path, server: Running) -> None:
    app = typer.Typer()
    app.command()(replay_command)
    words = ["synthetic", "--conversations", "3", "--scale", "0.02", "--lanes", "3", "--warmup", "0", "--duration", "2"]
    words += [
        "--live",
        server.url,
        "--time-scale",
        "0.01",
        "--vocab",
        "200",
        "--html",
        str(tmp_path / "r.html"),
        "--json",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["requests"] > 0
    assert "requests sent over" in done.stdout
    assert "Replay, live" in (tmp_path / "r.html").read_text("utf-8")


def test_a_failed_request_is_counted_and_the_rest_goes_on(server: Running) -> None:
    trace = Trace((Conversation("far", 64, (single(0.0, 5_000), single(0.2))),), open_loop=True)
    found = play(trace, Server(server.url), Phases(0.0, 60.0), 1.0)
    assert (found.requests, found.failed, found.played) == (1, 1, 2)


def test_a_server_that_cannot_be_used_is_said_so(server: Running) -> None:
    trace = Trace((Conversation("far", 64, (single(0.0, 5_000),)),), open_loop=True)
    with pytest.raises(StepwellError, match="every request failed, the last with"):
        play(trace, Server(server.url), Phases(0.0, 60.0), 1.0)
    with pytest.raises(ConfigError, match=r"cannot ask http://127.0.0.1:9/v1/models"):
        play(trace, Server("http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="--time-scale"):
        play(trace, Server(server.url), scale=0.0)
