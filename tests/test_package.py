"""What is installed: extras that are named where they lack, a wheel without what only tests need, a README for an index."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from stepwell.base.extras import MODULES
from tests.test_repository import ROOT, broken_links

_BUILD_S, _COMMAND_S = 300, 120
LACKING = {
    "serve MODEL": "engine",
    "doctor MODEL": "engine",
    "demo": "engine",
    "bench calibrate MODEL": "engine",
    "eval .": "engine",
    "eval --url http://127.0.0.1:9": "client",
    "batch calls.jsonl": "client",
    "chat .": "engine",
    "replay synthetic --live http://127.0.0.1:9": "client",
}
"""Commands that a bare installation cannot carry out, and the extra that each needs."""


def expect_named(command: str, extra: str, status: int, said: str) -> None:
    """It ended with one line that says what to install."""
    text = " ".join(said.split())
    assert status == 2 and f"pip install 'stepwell[{extra}]'" in text, (command, said)
    assert "Traceback" not in said and f"stepwell {command.split()[0]}" in text, (command, said)


def test_commands_name_the_extra_they_lack(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    program = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from typer.testing import CliRunner
from stepwell.cli import app
for line in sys.stdin:
    done = CliRunner().invoke(app, line.split())
    print(json.dumps([done.exit_code, done.output]))
"""
    words = [sys.executable, "-c", program, json.dumps(sorted({name for names in MODULES.values() for name in names}))]
    typed = "\n".join(LACKING)
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run(words, input=typed, capture_output=True, text=True, timeout=_COMMAND_S, **place)  # type: ignore[call-overload]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(LACKING), done.stderr
    for (command, extra), (status, said) in zip(LACKING.items(), told, strict=True):
        expect_named(command, extra, status, said)


def test_the_extras_that_commands_name_exist_and_bring_what_is_looked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    other = {"zmq": "pyzmq"}
    for extra, modules in MODULES.items():
        brought = {re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in extras[extra]}
        assert {other.get(module, module) for module in modules} <= brought


def setup_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_index_shows_a_readme_whose_links_lead_somewhere(tmp_path: Path) -> None:
    told = setup_script().told("https://host.example/o/n")
    (tmp_path / "README.md").write_text(told["long_description"])
    assert not list(broken_links(tmp_path / "README.md")), "every relative link has become an address"
    assert "(https://host.example/o/n/raw/main/docs/idea.svg)" in told["long_description"]
    assert "(https://host.example/o/n/blob/main/docs/api.md)" in told["long_description"]
    assert told["project_urls"]["Source"] == "https://host.example/o/n"


def test_a_package_built_without_an_address_names_none() -> None:
    told = setup_script().told("")
    assert "project_urls" not in told and told["long_description"] == (ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is written into the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "stepwell", source / "stepwell", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out), "."]
    subprocess.run(words, cwd=source, check=True, timeout=_BUILD_S)
    return next(out.glob("stepwell-*.whl"))


@pytest.mark.long
@pytest.mark.by_hand
def test_a_wheel_leaves_out_what_tests_need_and_brings_what_the_demo_needs(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [
        name for name in names if "/testing/" in name or "/peers/" in name or name.startswith(("tests/", "bench/"))
    ]
    files = {f"stepwell/{name}" for name in ("demo/model/model.safetensors", "server/pages/index.html", "py.typed")}
    assert files <= set(names)
    assert {path.name for path in (ROOT / "tiny/model").iterdir()} == {
        Path(name).name for name in names if name.startswith("stepwell/demo/model/")
    }


@pytest.mark.long
@pytest.mark.by_hand
def test_a_bare_installation_replays_plans_and_chats_and_names_what_it_lacks(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=_BUILD_S)
    binaries = tmp_path / "venv" / "bin"
    pip = [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([*pip, wheel], check=True, timeout=_BUILD_S, env=bare)
    (tmp_path / "config.json").write_text("{}")

    def run(line: str) -> tuple[int, str]:
        place = {"cwd": tmp_path, "env": {"PATH": str(binaries), "HOME": str(tmp_path)}}
        done = subprocess.run(
            [binaries / "stepwell", *line.split()],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_S, **place,  # type: ignore[call-overload]
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    for command, extra in LACKING.items():
        expect_named(command, extra, *run(command))
    small = "synthetic --conversations 4 --lanes 2 --duration 60 --device-tokens 1e5 --host-tokens 1e5"
    status, said = run(f"replay {small} --html report.html")
    assert status == 0 and "bound" in said and (tmp_path / "report.html").stat().st_size > 1000, said
    status, said = run(f"replay {small} --policy vllm")
    assert status == 2 and "models of other engines come with a clone" in " ".join(said.split()), said
    status, said = run(
        "plan synthetic --conversations 4 --lanes 2 --duration 60 --device 1e5 --host 0 --jobs 1 --html plan.html"
    )
    assert status == 0 and "stepwell serve MODEL" in said and (tmp_path / "plan.html").exists(), said
    status, said = run("chat http://127.0.0.1:9")
    assert status == 2 and "no server answers at http://127.0.0.1:9" in " ".join(said.split()), said
