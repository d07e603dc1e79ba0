"""Calibration, on an engine whose speed is known: the rates come out of it, and a profile that replays can use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry, Ints
from stepwell.bench.calibrate import measure_compute, measure_copies, measure_disk
from stepwell.bench.command import bench_app
from stepwell.bench.sizes import Sizes
from stepwell.replay.cost import CostModel
from stepwell.replay.profile import load_profile
from stepwell.sched.request import SamplingParams
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
class KnownEngine:
    """Takes the time that `KNOWN` gives it."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    facts: Any = field(default_factory=lambda: SimpleNamespace(vocab_size=100, max_model_len=8192))
    steps: int = 0
    seen: set[bytes] = field(default_factory=set)

    def __enter__(self) -> KnownEngine:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def stats(self) -> Any:
        return SimpleNamespace(steps=self.steps, sched_seconds=self.steps * KNOWN.overhead_s)

    def generate(self, prompts: Sequence[Ints], params: SamplingParams, read_cache: bool, write_cache: bool) -> None:
        assert params.max_tokens is not None
        for prompt in prompts:
            known = read_cache and prompt.tobytes() in self.seen
            if write_cache:
                self.seen.add(prompt.tobytes())
            n = 1 if known else len(prompt)
            self.clock.advance(0.01 + n / KNOWN.prefill_tokens_per_s + KNOWN.attention_s_per_pair * n * n / 2)
            self.steps += 1
        for i in range(params.max_tokens - 1):
            fixed = KNOWN.overhead_s + KNOWN.weights_s + KNOWN.sequence_s * len(prompts)
            self.clock.advance(fixed + KNOWN.kv_s_per_token * sum(len(p) + i for p in prompts))
            self.steps += 1


def test_the_speed_of_an_engine_is_found() -> None:
    engine = KnownEngine()
    found = measure_compute(engine, SMALL, CostModel(), lambda text: None, engine.clock)  # type: ignore[arg-type]
    for name in (
        "prefill_tokens_per_s",
        "attention_s_per_pair",
        "weights_s",
        "sequence_s",
        "kv_s_per_token",
        "overhead_s",
    ):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=0.02), name


def test_copies_and_the_disk_are_measured(tmp_path: Path) -> None:
    base = CostModel(to_host=1.0, to_device=1.0, to_disk=1.0, from_disk=1.0)
    found = measure_disk(tmp_path, SMALL, measure_copies(Geometry(page_bytes=4096), "cpu", SMALL, base))
    assert min(found.to_host, found.to_device, found.to_disk, found.from_disk) > 1000
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_checkpoint(tmp_path / "model", arch="qwen3_5", seed=0, layers=4, hidden=128)
    asked: list[dict[str, Any]] = []

    def engine(model: str, **flags: Any) -> KnownEngine:
        asked.append(flags)
        return KnownEngine()

    monkeypatch.setattr("stepwell.engine.llm.LLM", engine)
    monkeypatch.setattr("stepwell.bench.calibrate.measure_compute", lambda llm, sizes, base, say, clock: KNOWN)
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
    assert asked[0]["host_memory"] == 0


def test_a_model_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench_app, ["calibrate", str(tmp_path / "no"), "--out", str(tmp_path / "p.toml")])
    assert done.exit_code == 2
    assert "config.json" in done.stderr
    assert not (tmp_path / "p.toml").exists()


def test_a_disk_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--disk-dir"):
        measure_disk(tmp_path / "nowhere", SMALL, CostModel())
