"""Flags from the command line, the environment and a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stepwell.base.errors import ConfigError
from stepwell.cli import serve
from stepwell.server import flags
from stepwell.server.settings import read_settings

KNOWN = {"max_queue": False, "api_key": True, "device_memory": False}


def chosen(tmp_path: Path, text: str, arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What `stepwell serve` would be called with."""
    seen: dict[str, Any] = {}
    app = typer.Typer()

    @app.command(context_settings={"auto_envvar_prefix": flags.ENVIRONMENT})
    @flags.like(serve)
    def take(**values: Any) -> None:
        seen.update(values)

    file = tmp_path / "stepwell.toml"
    file.write_text(text)
    done = CliRunner().invoke(app, [*arguments, "--config", str(file)], env=environment)
    assert done.exit_code == 0, done.output
    return seen


def test_command_line_counts_before_environment_before_file_before_default(tmp_path: Path) -> None:
    text = 'model = "m"\nmax-queue = 1\nport = 1\nhost = "file"\nenable-prefix-caching = false\napi-key = ["k-file-1"]'
    values = chosen(tmp_path, text, ["--max-queue", "3"], {"STEPWELL_MAX_QUEUE": "2", "STEPWELL_PORT": "2"})
    assert (values["model"], values["max_queue"], values["port"], values["host"]) == ("m", 3, 2, "file")
    assert (values["enable_prefix_caching"], values["api_key"], values["seed"]) == (False, ["k-file-1"], 0)


def test_environment_alone_can_say_everything(tmp_path: Path) -> None:
    environment = {"STEPWELL_MODEL": "m", "STEPWELL_API_KEY": "key-number-1 key-number-2", "STEPWELL_SALT_PER_KEY": "1"}
    values = chosen(tmp_path, "", [], environment)
    assert (values["model"], values["salt_per_key"]) == ("m", True)
    assert values["api_key"] == ["key-number-1", "key-number-2"]


def test_every_flag_can_stand_in_a_file(tmp_path: Path) -> None:
    command = typer.main.get_command(_alone())
    names = [p.name for p in command.params if p.name not in ("config", "help")]
    assert len(names) > 30
    for name in names:
        file = tmp_path / "one.toml"
        file.write_text(f"{str(name).replace('_', '-')} = '1'")
        assert read_settings(str(file), {str(name): False}) == {name: "1"}


def _alone() -> typer.Typer:
    app = typer.Typer()
    app.command()(serve)
    return app


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max-queu = 1", "did you mean max-queue"),
        ("zzz = 1", "'zzz' is no flag"),
        ("max-queue = [1]", "max-queue must be a number"),
        ("max-queue = 1\nmax_queue = 2", "twice"),
        ("api-key = [1]", "list of strings"),
        ("[serve]\nmax-queue = 1", "'serve' is no flag"),
        ("max-queue =", "not valid TOML"),
        ("# " + "x" * 2**20, "bytes"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "stepwell.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named):
        read_settings(str(file), KNOWN)


def test_a_missing_file_and_a_wrong_value_are_told_without_a_traceback(tmp_path: Path) -> None:
    from stepwell.cli import app

    done = CliRunner().invoke(app, ["serve", "m", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 2 and "cannot read" in done.output
    file = tmp_path / "stepwell.toml"
    file.write_text('max-queue = "many"')
    done = CliRunner().invoke(app, ["serve", "m", "--config", str(file)])
    assert done.exit_code == 2 and "max-queue" in done.output
