"""Calibration, on an engine whose speed is known: the rates come out of it, and a profile that replays can use."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.geometry import Geometry
from stepwell.bench.calibrate import measure_compute, measure_copies, measure_disk
from stepwell.bench.command import bench_app
from stepwell.bench.sizes import Sizes
from stepwell.replay.cost import CostModel
from stepwell.replay.profile import load_profile
from stepwell.sched.request import Event, Finished, Request, Tokens
from stepwell.testing.checkpoint import write_checkpoint

KNOWN = CostModel(
    prefill_tokens_per_s=3000.0,
    attention_s_per_pair=2e-8,
    weights_s=0.004,
    sequence_s=0.001,
    kv_s_per_token=3e-7,
    overhead_s=0.002,
)
SMALL = Sizes(prompts=(64, 128, 256, 512), rounds=1, copy_bytes=1 << 20, disk_bytes=1 << 20)


@dataclass
class KnownLoop:
    """Takes the time that `KNOWN` gives it: a prompt a step, then a token for each request a step."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    steps: int = 0
    waiting: list[Request] = field(default_factory=list)
    running: list[tuple[Request, int]] = field(default_factory=list)
    ended: bool = False

    def submit(self, request: Request) -> None:
        assert not request.read_cache and not request.write_cache
        self.waiting.append(request)

    def stats(self) -> Any:
        return SimpleNamespace(steps=self.steps, sched_seconds=self.steps * KNOWN.overhead_s)

    def end(self, seconds: float) -> bool:
        self.ended = True
        return True

    def step(self) -> list[Event]:
        self.steps += 1
        if self.waiting:
            request = self.waiting.pop(0)
            n = len(request.prompt)
            self.clock.advance(0.01 + n / KNOWN.prefill_tokens_per_s + KNOWN.attention_s_per_pair * n * n / 2)
            self.running.append((request, 0))
            return self._grow(len(self.running) - 1)
        fixed = KNOWN.overhead_s + KNOWN.weights_s + KNOWN.sequence_s * len(self.running)
        self.clock.advance(fixed + KNOWN.kv_s_per_token * sum(len(r.prompt) + n for r, n in self.running))
        return [event for i in reversed(range(len(self.running))) for event in self._grow(i)]

    def _grow(self, index: int) -> list[Event]:
        request, tokens = self.running[index]
        self.running[index] = (request, tokens + 1)
        events: list[Event] = [Tokens(request.id, (1,))]
        if tokens + 1 == request.params.max_tokens:
            del self.running[index]
            events.append(Finished(request.id, "length"))
        return events


def test_the_speed_of_an_engine_is_found() -> None:
    loop = KnownLoop()
    found = measure_compute(loop, 100, SMALL, CostModel(), lambda text: None, loop.clock)  # type: ignore[arg-type]
    for name in (
        "prefill_tokens_per_s",
        "attention_s_per_pair",
        "weights_s",
        "sequence_s",
        "kv_s_per_token",
        "overhead_s",
    ):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=0.05), name
    assert not loop.running and not loop.waiting


def test_a_request_that_ends_badly_ends_the_calibration() -> None:
    class Broken(KnownLoop):
        def step(self) -> list[Event]:
            return [Finished(self.waiting[0].id, "error", "no pages")]

    with pytest.raises(StepwellError, match="ended with error: no pages"):
        measure_compute(Broken(), 100, SMALL, CostModel(), lambda text: None, VirtualClock())  # type: ignore[arg-type]


def test_copies_and_the_disk_are_measured(tmp_path: Path) -> None:
    base = CostModel(to_host=1.0, to_device=1.0, to_disk=1.0, from_disk=1.0)
    found = measure_disk(tmp_path, SMALL, measure_copies(Geometry(page_bytes=4096), "cpu", SMALL, base))
    assert min(found.to_host, found.to_device, found.to_disk, found.from_disk) > 1000
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_checkpoint(tmp_path / "model", arch="qwen3_5", seed=0, layers=4, hidden=128)
    loop, asked = KnownLoop(), list[Any]()

    def build(factory: Any, config: Any) -> tuple[KnownLoop, Any]:
        asked.append(config)
        return loop, SimpleNamespace(vocab_size=100, max_model_len=8192)

    monkeypatch.setattr("stepwell.engine.process.serving.build", build)
    monkeypatch.setattr("stepwell.bench.calibrate.measure_compute", lambda *given: KNOWN)
    done = CliRunner().invoke(
        bench_app, ["calibrate", str(model), "--out", str(tmp_path / "p.toml"), "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    profile = load_profile(str(tmp_path / "p.toml"))
    assert profile.costs.prefill_tokens_per_s == 3000.0
    config = json.loads((model / "config.json").read_text())
    heads = config["num_key_value_heads"] * config["head_dim"]
    assert profile.costs.kv_bytes_per_token == 2 * heads * 4, "one attention layer, float32 on a CPU"
    assert profile.image_bytes > 0
    assert "Measured by" in profile.source
    assert asked[0].host_memory == 0
    assert loop.ended


def test_a_model_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench_app, ["calibrate", str(tmp_path / "no"), "--out", str(tmp_path / "p.toml")])
    assert done.exit_code == 2
    assert "config.json" in "".join(done.stderr.split()), "it is wrapped where the path is long"
    assert not (tmp_path / "p.toml").exists()


def test_a_disk_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--disk-dir"):
        measure_disk(tmp_path / "nowhere", SMALL, CostModel())
