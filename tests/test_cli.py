"""The command line: faults are for servers under test, and hidden from everybody else."""

from __future__ import annotations

import re

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


def test_a_wrong_fault_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_TEST_BUILD", "1")
    status, text = said("serve", "nowhere", "--fault", "drop:*:*", "--fault", "drop:kv:host")
    assert status == 2 and "'drop:kv:host'" in text and "host->device" in text


def test_help_does_not_speak_of_faults() -> None:
    status, text = said("serve", "--help")
    assert status == 0 and "--verify-resume" in text and "--load-timeout" in text and "--fault" not in text


@pytest.mark.parametrize(
    "flag", ["--verify-resume=1.5", "--verify-resume=-1", "--load-timeout=-1", "--load-timeout=inf"]
)
def test_what_cannot_work_names_its_flag(flag: str) -> None:
    status, text = said("serve", "nowhere", flag)
    assert status == 2 and flag.partition("=")[0] in text
