"""Several policies on one trace: one command, one table, one line, one page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.browser import PHONE, browser, missing
from tests.replay.test_command import FIGURES, SMALL, run

WORDS = [
    "synthetic",
    *SMALL,
    "--conversations",
    "6",
    "--scale",
    "0.1",
    "--device-tokens",
    "4e4",
    "--host-tokens",
    "2e5",
]


def named(*names: str) -> list[str]:
    return [word for name in names for word in ("--policy", name)]


def test_policies_are_compared_in_the_order_in_which_they_were_named(tmp_path: Path) -> None:
    page, document = tmp_path / "c.html", tmp_path / "c.json"
    words = ["--jobs", "1", "--html", str(page), "--json-file", str(document), "--json"]
    done = run(*WORDS, *named("sglang", "ladder", "vllm"), *words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])["policies"]
    assert list(told) == ["sglang", "ladder", "vllm"]
    for name, figures in told.items():
        assert list(figures) == [*FIGURES[:-1], "ttft_p50", "ttft_p90", "failed", "bytes_moved"]
        assert 0 < figures["hit_device"] + figures["hit_host"] <= figures["bound"]
        assert re.search(rf"^ *{name} ", done.stdout, re.MULTILINE)
    alone = json.loads(run(*WORDS, *named("ladder"), "--json").stdout.splitlines()[-1])
    assert alone["policy"] == "ladder"
    assert [alone[name] for name in FIGURES[:6]] == [told["ladder"][name] for name in FIGURES[:6]], (
        "company changes nothing"
    )
    whole = json.loads(document.read_text("utf-8"))["policies"]
    assert {name: one["settings"]["policy"] for name, one in whole.items()} == {name: name for name in told}
    html = page.read_text("utf-8")
    assert html.count('<div class="bar">') == 3
    assert html.count("<polyline") == 3
    if not missing():
        with browser() as chromium:
            chromium.open(page, PHONE, "dark")
            assert chromium.complaints() == []
            assert chromium.ask("document.documentElement.scrollWidth") <= PHONE


def test_processes_find_what_one_process_finds() -> None:
    lines = [
        run(*WORDS, *named("lru", "atom-after"), "--jobs", jobs, "--json").stdout.splitlines()[-1] for jobs in "12"
    ]
    one, two = (json.loads(line)["policies"] for line in lines)
    for figures in (*one.values(), *two.values()):
        del figures["requests_per_s"]  # of this machine's clock
    assert one == two


def test_the_table_is_whole_on_a_terminal_of_80_columns() -> None:
    words = [
        *WORDS,
        "--device-tokens",
        "15000",
        "--host-tokens",
        "2e4",
        "--disk-tokens",
        "1e6",
        *named("atom-after", "lru"),
    ]
    done = run(*words, "--jobs", "1")
    assert re.search(r"^ *policy .* disk .* copied *$", done.stdout, re.MULTILINE)
    assert "…" not in done.stdout


def test_requests_that_a_policy_could_not_serve_are_told() -> None:
    done = run(*WORDS, "--device-tokens", "6000", *named("ladder", "vllm"), "--jobs", "1", "--json")
    figures = json.loads(done.stdout.splitlines()[-1])["policies"]
    assert figures["ladder"]["failed"] > 0
    counts = ", ".join(f"{name} {figures[name]['failed']}" for name in ("ladder", "vllm"))
    assert f"Requests that failed: {counts}\n" in done.stdout


def test_legs_of_a_peers_loads_fail_as_often_as_asked() -> None:
    hits = [
        json.loads(
            run(
                *WORDS, "--device-tokens", "15000", *named("vllm"), "--peer-failure-rate", rate, "--json"
            ).stdout.splitlines()[-1]
        )["hit_host"]
        for rate in ("0", "1")
    ]
    assert hits[0] > hits[1] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "fifo"], "--policy 'fifo' is unknown: use one of ladder, lru, vllm"),
        (["--policy", "vllm", "--live", "http://127.0.0.1:9"], "leave it out with --live"),
        (
            ["--policy", "lru", "--policy", "atom-after", "--block-size", "96", "--rung-grid", "96", "--jobs", "1"],
            "must divide 256",
        ),
    ],
)
def test_mistakes_are_explained(words: list[str], message: str) -> None:
    done = run("synthetic", "--conversations", "3", "--state-checkpoint-interval-tokens", "9600", *words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_help_has_a_line_for_each() -> None:
    said = " ".join(run("--help").stdout.split())
    for name in ("ladder: ", "lru: ", "vllm: ", "atom-before: "):
        assert name in said
