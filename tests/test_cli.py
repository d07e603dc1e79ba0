"""The command line: faults are for servers under test, and hidden from everybody else."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from stepwell.cli import app


def said(*arguments: str) -> tuple[int, str]:
    """Exit status and everything printed, without colours, on one line."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, " ".join(re.sub(r"\x1b\[[0-9;]*m", "", done.output).split())


def test_faults_are_refused_outside_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "0", "yes"):
        monkeypatch.delenv("STEPWELL_TEST_BUILD", raising=False)
        if value is not None:
            monkeypatch.setenv("STEPWELL_TEST_BUILD", value)
        status, text = said("serve", "nowhere", "--fault", "drop:*:*")
        assert status == 2 and "STEPWELL_TEST_BUILD=1" in text


def test_a_wrong_fault_is_told_before_anything_starts(empty_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_TEST_BUILD", "1")
    status, text = said("serve", empty_model, "--fault", "drop:*:*", "--fault", "drop:kv:host")
    assert status == 2 and "'drop:kv:host'" in text and "host->device" in text


def test_help_does_not_speak_of_faults() -> None:
    status, text = said("serve", "--help")
    assert status == 0 and "--verify-resume" in text and "--load-timeout" in text and "--fault" not in text


@pytest.mark.parametrize(
    "flag", ["--verify-resume=1.5", "--verify-resume=-1", "--load-timeout=-1", "--load-timeout=inf"]
)
def test_what_cannot_work_names_its_flag(empty_model: str, flag: str) -> None:
    status, text = said("serve", empty_model, flag)
    assert status == 2 and flag.partition("=")[0] in text


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--help"], 0, "Play a trace of conversations"),
        (["--version"], 0, "stepwell 0."),
        (["serve", "--help"], 0, "--max-model-len"),
        (["repla"], 2, "Did you mean 'replay'"),
        (["serve", "/nowhere"], 2, "/nowhere does not exist"),
        (["serve", "/"], 2, "/ has no config.json"),
        (["serve", __file__], 2, "is a file"),
    ],
)
def test_help_and_wrong_paths_are_answered_before_libraries_are_imported(
    arguments: list[str], status: int, words: str
) -> None:
    program = f"""
import sys
from stepwell.cli import app
try:
    app({arguments!r})
finally:
    print("imported:", sorted({{"numpy", "torch", "transformers", "fastapi", "zmq"}} & set(sys.modules)))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "300"})
    assert done.returncode == status and words in done.stdout + done.stderr, done.stdout + done.stderr
    assert "imported: []" in done.stdout


def test_commands_that_are_imported_later_take_their_own_flags() -> None:
    for command, flag in (("replay", "--device-tokens"), ("plan", "--host-price")):
        status, text = said(command, "--help")
        assert status == 0 and flag in text
    status, text = said("bench", "calibrate", "--help")
    assert status == 0 and "--max-num-seqs" in text
