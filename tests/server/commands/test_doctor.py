"""What would go wrong, found before it does."""

from __future__ import annotations

import io
import json
import socket
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from stepwell.cli import app
from stepwell.engine.config import DiskCache, EngineConfig
from stepwell.server.commands.doctor import Finding, examine, show
from stepwell.server.commands.options import ServeOptions
from stepwell.server.commands.settings import TraceTarget
from stepwell.testing.checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model")
    write_checkpoint(path)
    return path


def options(model: Path, **flags: object) -> ServeOptions:
    given = {"device_memory": 64 << 20, "host_memory": 64 << 20, "max_model_len": 512, **flags}
    return ServeOptions(EngineConfig(str(model), **given), port=0)  # type: ignore[arg-type]


def worst(findings: list[Finding], what: str) -> Finding:
    """The gravest finding about one thing."""
    order = {"ok": 0, "warning": 1, "error": 2}
    return max((f for f in findings if f.what == what), key=lambda f: order[f.level])


def test_a_sound_setting_passes(model: Path) -> None:
    findings = examine(options(model))
    assert not [f for f in findings if f.level == "error"], findings
    assert {f.what for f in findings} >= {
        "python",
        "torch",
        "device",
        "config.json",
        "weights",
        "chat template",
        "port",
    }
    out = io.StringIO()
    assert show(findings, Console(file=out, width=200)) == 0 and "0 errors" in out.getvalue()


def test_every_fault_is_told_with_what_to_do(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    assert "safetensors" in worst(examine(options(broken)), "checkpoint").advice
    assert worst(examine(options(tmp_path / "none")), "checkpoint").level == "error"
    assert "--host-memory" in worst(examine(options(model, host_memory=1 << 60)), "memory").advice
    small = worst(examine(options(model, device_memory=1 << 20, max_model_len=None)), "caching")
    assert small.level == "warning" and "--device-memory" in small.advice
    none = worst(examine(options(model, device_memory=1 << 14)), "memory")
    assert none.level == "error" and "--device-memory holds" in none.advice
    long = worst(examine(options(model, device_memory=1 << 24, max_model_len=10**6)), "memory")
    assert long.level == "error" and "--max-model-len 1000000" in long.advice
    little = worst(examine(options(model, disk_cache=DiskCache(str(tmp_path / "cache"), 1 << 16))), "disk")
    assert little.level == "error" and "--disk-cache: 64.0 KiB is too little" in little.advice
    full = DiskCache(str(tmp_path / "cache"), 1 << 60)
    assert worst(examine(options(model, disk_cache=full)), "disk").level == "warning"
    (tmp_path / "file").write_text("x")
    assert worst(examine(options(model, disk_cache=DiskCache(str(tmp_path / "file"), 1))), "disk").level == "error"


def test_ends_that_disagree_and_the_sampling_are_told(model: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    for file in model.iterdir():
        (odd / file.name).write_bytes(file.read_bytes())
    assert worst(examine(options(odd)), "ends").level == "ok"
    config = json.loads((odd / "config.json").read_text()) | {"eos_token_id": 0}
    (odd / "config.json").write_text(json.dumps(config))
    (odd / "generation_config.json").write_text('{"temperature": 0.6}')
    told = worst(examine(options(odd)), "ends")
    assert told.level == "warning" and "tokenizer_config.json and chat template" in told.advice
    assert "temperature 0.6" in worst(examine(options(odd)), "sampling").found
    wrong = replace(options(odd), generation_override='{"top_p": 7}')
    assert worst(examine(wrong), "checkpoint").level == "error"


def absent(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def test_where_traces_go_is_told_and_what_they_need(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TraceTarget("http://127.0.0.1:4318/v1/traces", asked=True)
    assert not [f for f in examine(options(model)) if f.what == "traces"]
    monkeypatch.setattr(metadata, "version", lambda name: "9")
    assert target.url in worst(examine(replace(options(model), traces=target)), "traces").found
    monkeypatch.setattr(metadata, "version", absent)
    assert "[otel]" in worst(examine(replace(options(model), traces=target)), "traces").advice
    asked = worst(examine(replace(options(model), traces=target)), "traces")
    told = worst(examine(replace(options(model), traces=replace(target, asked=False))), "traces")
    assert (asked.level, told.level) == ("error", "warning")


def test_a_port_in_use_and_an_open_door_are_told(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert worst(examine(replace(options(model), port=port)), "port").level == "error"
    assert "--api-key" in worst(examine(replace(options(model), host="0.0.0.0")), "keys").advice


def test_command_takes_the_flags_of_serve_and_fails_where_serving_would(model: Path) -> None:
    arguments = ["doctor", str(model), "--port", "0", "--host-memory", "64MiB", "--max-model-len", "512"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    failed = CliRunner().invoke(app, [*arguments, "--host-memory", "900TiB"])
    assert failed.exit_code == 1 and "memory" in failed.output
    assert CliRunner().invoke(app, [*arguments, "--rung-grid", "65"]).exit_code == 2
