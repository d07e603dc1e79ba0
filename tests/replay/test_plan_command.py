"""`stepwell plan` as a person runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from stepwell.engine.config import engine_config
from stepwell.replay.plan_command import plan_command
from stepwell.replay.profile import DEFAULT, load_profile
from tests.browser import PHONE, browser, missing

SMALL = [
    "--lanes",
    "3",
    "--warmup",
    "20",
    "--duration",
    "150",
    "--rung-tokens",
    "300",
    "--conversations",
    "6",
    "--scale",
    "0.1",
]
SIZES = ["--device", "3e4", "--device", "2e5", "--host", "0", "--host", "500MiB"]


def run(*words: str) -> Result:
    app = typer.Typer()
    app.command()(plan_command)
    return CliRunner().invoke(app, words)


def test_a_plan_ends_with_the_words_to_serve_by(tmp_path: Path) -> None:
    done = run("synthetic", *SMALL, *SIZES, "--jobs", "1", "--html", str(tmp_path / "plan.html"))
    assert done.exit_code == 0, done.output
    last = done.stdout.splitlines()[-1]
    assert last.startswith("stepwell serve MODEL --device-memory ")
    assert "--state-checkpoint-interval-tokens 8192" in last
    assert done.stdout.count("█") > 10
    text = (tmp_path / "plan.html").read_text("utf-8")
    assert len(re.findall(r"<h2>", text)) == 5
    assert text.count('class="dot knee"') == 2
    assert "measured on an H200" in text
    if not missing():
        with browser() as chromium:
            chromium.open(tmp_path / "plan.html", PHONE, "dark")
            assert chromium.complaints() == []
            assert chromium.ask("document.documentElement.scrollWidth") <= PHONE


def test_every_size_is_tried_under_each_policy_and_the_flags_are_of_one_of_our_own(tmp_path: Path) -> None:
    words = [
        "--policy",
        "vllm",
        "--policy",
        "lru",
        "--policy",
        "ladder",
        "--disk",
        "1GiB",
        "--html",
        str(tmp_path / "plan.html"),
    ]
    done = run("synthetic", *SMALL, *SIZES, *words, "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert "Knee of lru: " in done.stdout and re.search(r"^Knee: ladder ", done.stdout, re.MULTILINE)
    assert " --disk-cache FOLDER:1024MiB " in done.stdout.splitlines()[-1]
    assert "Knee of vllm: " in done.stdout
    rows = re.findall(r"^ *(vllm|lru|ladder) +\d.*iB", done.stdout, re.MULTILINE)
    assert rows == ["vllm"] * 4 + ["lru"] * 4 + ["ladder"] * 4
    text = (tmp_path / "plan.html").read_text("utf-8")
    assert text.count("<polyline") == 2 * 6
    assert "vllm (modelled), host 500.0 MiB, disk " in text


def test_the_words_are_those_that_serve_takes() -> None:
    few = ["--device", "3e4", "--device", "5e4", "--host", "1e5"]
    done = run("synthetic", *SMALL, *few, "--jobs", "1", "--no-coalesce")
    assert done.exit_code == 0, done.output
    words = done.stdout.splitlines()[-1].split()[3:]
    told = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    values = {name[2:].replace("-", "_"): int(v) if v.isdigit() else v for name, v in told.items()}
    config = engine_config({**values, "model": "MODEL", "coalesce": words[-1] != "--no-coalesce"})
    assert not config.coalesce
    assert config.decode_rung_tokens == config.block_size == 64
    kv = load_profile(DEFAULT).costs.kv_bytes_per_token
    assert config.device_memory is not None
    assert any(0 <= config.device_memory - size * kv < 2**20 for size in (30_000, 50_000)), "what was simulated fits"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "vllm"], "--policy must name the one that serves as well: ladder"),
        (["--policy", "best"], "--policy 'best' is unknown"),
        (["--device", "lots"], "--device must be"),
        (["--profile", "nowhere"], "--profile 'nowhere' is neither"),
        (["--lanes", "0"], "--lanes must be"),
    ],
)
def test_mistakes_are_explained(words: list[str], message: str) -> None:
    done = run("synthetic", *words, "--jobs", "1")
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
