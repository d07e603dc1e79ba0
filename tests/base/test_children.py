"""Processes of our own import what their parent does, whatever lies in the current folder."""

from __future__ import annotations

import ast
import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from stepwell.base.children import ONE_THREAD, command, environment, importing_safely
from tests.test_repository import ROOT


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: modules of the library and of this project in it end whoever imports them."""
    for name in ("random", "typing", "multiprocessing", "numpy", "stepwell"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(70)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("hostile")
def test_a_program_imports_nothing_from_the_current_folder() -> None:
    done = subprocess.run(
        command("stepwell", "--version"), env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("stepwell ")


@pytest.mark.usefixtures("hostile")
def test_a_pool_of_processes_imports_nothing_from_the_current_folder() -> None:
    with importing_safely():
        pool = ProcessPoolExecutor(1, get_context("spawn"))
        pid = pool.submit(os.getpid)
    with pool:
        assert pid.result(60) != os.getpid()
    assert "PYTHONSAFEPATH" not in os.environ


def test_an_environment_keeps_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "9")
    given = environment(**ONE_THREAD)
    assert given["PYTHONPATH"].split(os.pathsep)[-1] == "/elsewhere"
    assert given["OPENBLAS_NUM_THREADS"] == "1" and os.environ["OPENBLAS_NUM_THREADS"] == "9"


def test_nothing_else_starts_python() -> None:
    """Whoever names the interpreter would have to think of the current folder again."""
    sources = [path for path in (ROOT / "stepwell").rglob("*.py") if path.name != "children.py"]
    names = {
        str(path.relative_to(ROOT))
        for path in sources
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    }
    assert names == set()
