"""Flags from the command line, the environment and a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from stepwell.base.errors import ConfigError
from stepwell.cli import app, serve
from stepwell.server.commands import flags
from stepwell.server.commands.serve_settings import ENVIRONMENT, ServeSettings
from stepwell.server.commands.settings import TraceTarget, expect_variables, read_settings, trace_target

KNOWN = {"max_queue": False, "api_key": True, "device_memory": False}


def chosen(
    tmp_path: Path, text: str, arguments: list[str], environment: dict[str, str], by_flag: bool = True
) -> dict[str, Any]:
    """What `stepwell serve` would be called with; the file is named by a flag, or else by the environment."""
    seen: dict[str, Any] = {}
    app = typer.Typer()

    @app.command(context_settings={"auto_envvar_prefix": ENVIRONMENT})
    @flags.like(ServeSettings)
    def take(**values: Any) -> None:
        seen.update({name: value for name, value in values.items() if name != "ctx"})

    file = tmp_path / "stepwell.toml"
    file.write_text(text)
    done = CliRunner().invoke(app, [*arguments, *(("--config", str(file)) if by_flag else ())], env=environment)
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


def every_flag() -> dict[str, Any]:
    """All parameters of `stepwell serve` but the file itself, each with a value other than its default."""
    values: dict[str, Any] = {}
    for name, kind in get_type_hints(ServeSettings).items():
        default = vars(ServeSettings).get(name)
        if name == "config":
            continue
        if kind == list[str] | None:
            values[name] = ["text-1", "text-2"]
        elif kind in (bool, bool | None):
            values[name] = not default
        else:
            values[name] = {int: 3, int | None: 3, float: 1.5, float | None: 1.5}.get(kind, "words")
        assert values[name] != default, name
    assert len(values) > 40
    return values


def test_every_flag_can_stand_in_a_file(tmp_path: Path) -> None:
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in every_flag().items()]
    values = chosen(tmp_path, "\n".join(lines), [], {})
    assert values == {**every_flag(), "config": str(tmp_path / "stepwell.toml")}


def test_every_flag_can_stand_in_the_environment(tmp_path: Path) -> None:
    environment = {"STEPWELL_CONFIG": str(tmp_path / "stepwell.toml")}
    for name, value in every_flag().items():
        environment[f"STEPWELL_{name.upper()}"] = " ".join(value) if isinstance(value, list) else str(value)
    values = chosen(tmp_path, 'model = "file"\nmax-queue = 77', [], environment, by_flag=False)
    assert values == {**every_flag(), "config": environment["STEPWELL_CONFIG"]}


def test_every_flag_has_a_help_text_of_its_own() -> None:
    texts = [str(param.help) for param in typer.main.get_command(_alone()).params]  # type: ignore[attr-defined]
    assert all(text not in ("", "None") for text in texts) and len(set(texts)) == len(texts)


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

    done = CliRunner().invoke(app, ["serve", "m", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 2 and "cannot read" in done.output
    file = tmp_path / "stepwell.toml"
    file.write_text('max-queue = "many"')
    done = CliRunner().invoke(app, ["serve", "m", "--config", str(file)])
    assert done.exit_code == 2 and "max-queue" in done.output


FLAG = "http://flag:4318"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://base:4318/"}
WHOLE = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://whole/spans"}


@pytest.mark.parametrize(
    ("flag", "environment", "target"),
    [
        (None, {}, None),
        (FLAG, ENDPOINT | WHOLE | {"OTEL_SDK_DISABLED": "true"}, TraceTarget("http://flag:4318/v1/traces", True)),
        ("http://flag:4318/v1/traces", {}, TraceTarget("http://flag:4318/v1/traces", True)),
        (None, ENDPOINT, TraceTarget("http://base:4318/v1/traces", False)),
        (None, ENDPOINT | WHOLE, TraceTarget("https://whole/spans", False)),
        (None, ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, None),
        (None, ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_traces_go_where_the_flag_says_or_else_the_standard_variables(
    flag: str | None, environment: dict[str, str], target: TraceTarget | None
) -> None:
    assert trace_target(flag, environment) == target


def test_what_is_no_url_of_a_collector_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--otlp-endpoint 'flag:4318' .* http://"):
        trace_target("flag:4318", {})
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        trace_target(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "base"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("STEPWELL_MAX_QUEU", "did you mean STEPWELL_MAX_QUEUE"), ("STEPWELL_ZZZ", "stepwell serve --help")],
)
def test_a_variable_that_no_flag_has_is_an_error_that_names_the_nearest(name: str, hint: str) -> None:
    for command in ("serve", "doctor"):
        done = CliRunner().invoke(app, [command, "m"], env={name: "1"})
        assert done.exit_code == 2 and f"the variable {name} is set" in done.output and hint in done.output


def test_variables_of_other_commands_and_of_kubernetes_are_no_errors() -> None:
    known = {"STEPWELL_PORT", "STEPWELL_TARGET"}
    links = {
        "STEPWELL_SERVICE_HOST": "10.0.0.1",
        "STEPWELL_SERVICE_PORT_HTTP": "80",
        "STEPWELL_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    expect_variables({"STEPWELL_TARGET": "x", "STEPWELL_PORT_80_TCP": "tcp://…", "PATH": "/", **links}, known)


def test_help_stands_in_groups_and_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for word in ("-h", "--help"):
        told = CliRunner().invoke(app, ["serve", word]).output
        assert max(map(len, told.splitlines())) <= 80
        groups = [line[:-1] for line in told.splitlines() if line.endswith(":") and not line.startswith(" ")]
        assert groups == ["Arguments", "Model", "Memory", "Cache", "Scheduling", "Server", "Logs", "Expert", "Options"]


def test_a_shell_can_complete_commands_and_flags() -> None:
    asked = {"_STEPWELL_COMPLETE": "complete_bash", "COMP_WORDS": "stepwell serve --max-q", "COMP_CWORD": "2"}
    done = CliRunner().invoke(app, [], prog_name="stepwell", env=asked)
    assert done.output.split() == ["--max-queue"]
