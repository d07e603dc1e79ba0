"""The README's own lines: every command exists with its flags, and every snippet runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from stepwell.cli import app
from stepwell.demo.server import Server, free_port, serve_command
from stepwell.later import LaterCommand
from tests.test_repository import ROOT

_RUN_S, _START_S = 120, 90
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = _BLOCK.findall((ROOT / "README.md").read_text("utf-8"))
LINES = [shlex.split(line, comments=True) for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]


def lines_of(*words: str) -> list[list[str]]:
    """The command lines that begin so, without these words."""
    return [line[len(words) :] for line in LINES if tuple(line[: len(words)]) == words]


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python"} and len(PROGRAMS) == 2
    tried = lines_of("make") + lines_of("pip", "install") + lines_of("stepwell")
    assert len(tried) == len(LINES)


def test_targets_of_make_and_extras_exist() -> None:
    for (target,) in lines_of("make"):
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True, timeout=_RUN_S)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {name for (what,) in lines_of("pip", "install") for name in re.findall(r"\w+", what)}
    assert named and named <= set(extras)


def test_commands_take_the_flags_that_they_are_given() -> None:
    commands = typer.main.get_command(app)
    for name, *words in lines_of("stepwell"):
        command = commands.commands[name]  # type: ignore[attr-defined]
        command = command.real() if isinstance(command, LaterCommand) else command
        command.make_context(name, list(words))  # raises for what is unknown, missing or of the wrong kind


@pytest.mark.parametrize(
    "words", [line for line in lines_of("stepwell") if line[0] in ("plan", "replay")], ids=" ".join
)
def test_simulations_run(words: list[str], tmp_path: Path) -> None:
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", *words], capture_output=True, text=True, timeout=_RUN_S, **place
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert ("stepwell serve MODEL" in done.stdout) if words[0] == "plan" else (tmp_path / "report.html").exists()


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=_RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_server_of_the_readme_answers_its_program_and_its_chat(tmp_path: Path) -> None:
    ((model, *flags),) = lines_of("stepwell", "serve")
    port = free_port()
    with Server(serve_command(ROOT / model, port, flags), port, tmp_path / "log") as server:
        server.wait_until_healthy(_START_S)
        said = python(PROGRAMS[0].replace("http://127.0.0.1:8000", server.base_url)).splitlines()
        ((url,),) = lines_of("stepwell", "chat")
        words = [sys.executable, "-m", "stepwell", "chat", url.replace("http://127.0.0.1:8000", server.base_url)]
        talk = subprocess.run(words, input="Who are you?\n", capture_output=True, text=True, timeout=_RUN_S, cwd=ROOT)
    assert said == ["The code of the green door is 4905. 0", "The code of the green door is 4905. 128"]
    assert talk.returncode == 0 and "first after" in talk.stdout


@pytest.mark.long
def test_the_engine_in_process_writes() -> None:
    assert python(PROGRAMS[1]).strip()
