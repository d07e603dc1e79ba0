"""`stepwell replay` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from stepwell.replay.command import replay_command
from stepwell.replay.convert import write_trace
from stepwell.replay.formats import read_trace
from stepwell.replay.synthetic import Shape, synthetic

SMALL = ["--lanes", "3", "--warmup", "20", "--duration", "300", "--rung-tokens", "300", "--device-tokens", "2e5"]
FIGURES = ["requests", "bound", "hit_device", "hit_host", "hit_disk", "excess_prefill", "requests_per_s", "policy"]


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


def test_reports_are_written_as_json_and_as_a_page(tmp_path: Path) -> None:
    page, document = tmp_path / "r.html", tmp_path / "r.json"
    words = ["--conversations", "6", "--scale", "0.1", "--html", str(page), "--json-file", str(document), "--json"]
    done = run("synthetic", *SMALL, *words)
    assert done.exit_code == 0, done.output
    told = json.loads(document.read_text("utf-8"))
    assert told["figures"] == json.loads(done.stdout.splitlines()[-1])
    assert told["settings"]["lanes"] == "3"
    assert "api_key" not in told["settings"]
    assert "<h1>Replay, simulated</h1>" in page.read_text("utf-8")


def test_a_disk_tier_and_the_profile_reach_the_machine() -> None:
    words = ["--conversations", "8", "--scale", "0.1", "--device-tokens", "12000", "--host-tokens", "4000"]
    without = run("synthetic", *SMALL, *words, "--json")
    disk = run("synthetic", *SMALL, *words, "--disk-tokens", "4e5", "--decode-rung-tokens", "128", "--json")
    assert disk.exit_code == 0, disk.output
    assert "host to disk" in disk.stdout or "device to disk" in disk.stdout
    hits = [json.loads(done.stdout.splitlines()[-1]) for done in (without, disk)]
    assert hits[0]["hit_disk"] == 0 < hits[1]["hit_disk"]
    assert hits[1]["excess_prefill"] < hits[0]["excess_prefill"]
    other = run("synthetic", *SMALL, *words, "--profile", "qwen3-next-80b-a3b-h200", "--json")
    assert other.exit_code == 0, other.output


def test_a_bound_that_knows_the_future_stands_beside_the_results() -> None:
    words = ["--conversations", "8", "--scale", "0.1", "--device-tokens", "12000", "--host-tokens", "4000", "--json"]
    plain, done = run("synthetic", *SMALL, *words), run("synthetic", *SMALL, *words, "--bound", "future")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert 0 < figures["excess_prefill_future"] < figures["excess_prefill"]
    assert figures["excess_prefill"] == json.loads(plain.stdout.splitlines()[-1])["excess_prefill"]
    assert "that knows the future" in done.stdout
    assert "that knows the future" not in plain.stdout


def test_policies_are_compared_with_the_bound_that_knows_the_future() -> None:
    words = [
        "--conversations",
        "6",
        "--scale",
        "0.1",
        "--policy",
        "ladder",
        "--policy",
        "vllm",
        "--jobs",
        "1",
        "--json",
    ]
    done = run("synthetic", *SMALL, *words, "--bound", "future")
    assert done.exit_code == 0, done.output
    assert "future" in done.stdout
    told = json.loads(done.stdout.splitlines()[-1])["policies"]
    assert all(told[name]["excess_prefill_future"] <= told[name]["excess_prefill"] for name in ("ladder", "vllm"))


def test_every_conversation_once() -> None:
    words = [
        "--conversations",
        "4",
        "--scale",
        "0.05",
        "--once",
        "--start",
        "0",
        "0",
        "--warmup",
        "0",
        "--duration",
        "1e6",
    ]
    done = run("synthetic", "--lanes", "2", *words, "--json")
    assert done.exit_code == 0, done.output
    made = synthetic(4, 0, Shape(scale=0.05))
    assert json.loads(done.stdout.splitlines()[-1])["requests"] == made.requests


def test_traces_are_converted_and_nothing_is_played(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl.gz"
    done = run("synthetic", "--conversations", "3", "--convert", str(out))
    assert done.exit_code == 0, done.output
    assert "3 conversations written to" in " ".join(done.stdout.split())
    assert read_trace(out) == synthetic(3, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nowhere/t.jsonl"], "there is no trace at"),
        (["synthetic", "--lanes", "0"], "--lanes must be at least 1"),
        (["synthetic", "--start", "0.9", "0.1"], "--start must be"),
        (["synthetic", "--block-size", "48"], "--rung-grid 64 must be a multiple"),
        (["synthetic", "--scale", "0"], "scale above 0"),
        (["synthetic", "--profile", "abacus"], "--profile 'abacus' is neither"),
        (["synthetic", "--decode-rung-tokens", "100"], "--decode-rung-tokens 100 must be a multiple"),
        (["synthetic", "--convert", "/nowhere/x.jsonl"], "cannot write"),
        (
            ["synthetic", "--html", "/nowhere/x.html", "--duration", "1", "--warmup", "0", "--scale", "0.05"],
            "cannot write",
        ),
        (["synthetic", "--live", "http://127.0.0.1:9"], "is the server up"),
        (["synthetic", "--bound", "luck"], "--bound 'luck' is unknown: use one of infinite, future"),
        (["synthetic", "--bound", "future", "--live", "http://127.0.0.1:9"], "leave it out with --live"),
        (["synthetic", "--device-tokens", "nan"], "--device-tokens must be"),
        (["synthetic", "--device-tokens", "0"], "--device-tokens 0 holds no page of 64 tokens"),
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
