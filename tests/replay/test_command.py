"""`stepwell replay` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from stepwell.replay.command import replay_command
from stepwell.replay.convert import write_trace
from stepwell.replay.synthetic import Shape, synthetic

SMALL = ["--lanes", "3", "--warmup", "20", "--duration", "300", "--rung-tokens", "300", "--device-tokens", "2e5"]
FIGURES = ["requests", "bound", "hit_device", "hit_host", "hit_disk", "excess_prefill", "requests_per_s"]


def run(*words: str) -> Result:
    app = typer.Typer()
    app.command()(replay_command)
    return CliRunner().invoke(app, words)


def test_a_made_up_trace_ends_with_a_table_and_the_figures() -> None:
    done = run("synthetic", *SMALL, "--conversations", "8", "--scale", "0.1", "--host-tokens", "5e5", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures) == FIGURES
    assert figures["requests"] > 0
    assert 0 < figures["hit_device"] + figures["hit_host"] <= figures["bound"] < 1
    assert "excess prefill" in done.stdout
    assert "joint: boundaries=" in done.stdout


def test_a_trace_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    write_trace(synthetic(4, 1, Shape(scale=0.1)), path)
    done = run(str(path), *SMALL)
    assert done.exit_code == 0, done.output
    assert "requests measured" in done.stdout


def test_single_requests_are_sent_at_their_times(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1000 * i, "input_length": 1100, "output_length": 4, "hash_ids": [0, 1, 2 + i]} for i in range(9)
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    done = run(str(path), "--warmup", "0", "--duration", "30", "--rung-tokens", "64", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["requests"] == 9
    assert 0.5 < figures["hit_device"] <= figures["bound"] == pytest.approx(8 * 1024 / (9 * 1100), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nowhere/t.jsonl"], "there is no trace at"),
        (["synthetic", "--lanes", "0"], "--lanes must be at least 1"),
        (["synthetic", "--start", "0.9", "0.1"], "--start must be"),
        (["synthetic", "--block-size", "48"], "--rung-grid 64 must be a multiple"),
        (["synthetic", "--scale", "0"], "scale above 0"),
        (["synthetic", "--device-tokens", "nan"], "--device-tokens must be"),
    ],
)
def test_mistakes_are_explained(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_help_teaches_by_example() -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert "stepwell replay synthetic" in done.stdout
