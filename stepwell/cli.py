"""`stepwell`: one function a command, each of which imports what it needs. The environment is read here and nowhere else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.extras import expect_extra
from stepwell.later import LaterCommand
from stepwell.server.commands import flags
from stepwell.server.commands.launch import LaunchCommand
from stepwell.server.commands.serve_settings import ENVIRONMENT, ServeSettings
from stepwell.server.commands.settings import expect_variables

_BY_SIGNAL = 128
"""Statuses above it say that a signal ended the program."""
_ENVIRONMENT = {"auto_envvar_prefix": ENVIRONMENT}
_TEST_BUILD = "STEPWELL_TEST_BUILD"

_LATER = (
    (
        "replay",
        "stepwell.replay.command:replay_command",
        "Play a trace of conversations through the cache, simulated or live.",
    ),
    ("plan", "stepwell.replay.plan_command:plan_command", "Say how much memory a trace is worth."),
    (
        "eval",
        "stepwell.eval.command:eval_command",
        "Judge answers twice: computed cold, and resumed from a tier of the cache.",
    ),
    ("bench", "stepwell.bench.command:bench_app", "Measure this machine."),
    (
        "demo",
        "stepwell.demo.__main__:demo_command",
        "Serve a small model that comes along, and show what the cache does.",
    ),
)


class _Commands(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in _LATER:
            self.add_command(LaterCommand(*command))


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"stepwell {version('stepwell')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Serve hybrid language models from a prompt cache that reaches from device memory through host memory to disk."""


@app.command(context_settings=_ENVIRONMENT, cls=LaunchCommand)
@flags.like(ServeSettings)
def serve(ctx: typer.Context, **values: Any) -> None:
    """Serve MODEL over the OpenAI API.

    Every flag may also be an environment variable (--max-queue is STEPWELL_MAX_QUEUE) or a line of the --config file; the
    command line counts before the environment, that before the file.
    """
    from stepwell.engine.hub import expect_checkpoint
    from stepwell.engine.logs import set_up

    given = frozenset(name for name in ctx.params if _is_given(ctx, name))
    with _errors_told():
        set_up(values["log_level"], values["log_format"])
        expect_variables(os.environ, _variables(ctx))
        _allow_faults(values["faults"])
        expect_extra("engine", "stepwell serve")
        expect_checkpoint(values["model"])
        from stepwell.server.commands.preflight import (
            preflight,  # before other libraries are imported, which takes seconds
        )

        preflight(values)
    from stepwell.server.commands.options import options_from, with_local_model
    from stepwell.server.commands.serve import leave, serve

    with _errors_told():
        status = serve(options_from(with_local_model(values, fetch=True), given, os.environ), Console())
    if status > _BY_SIGNAL:
        leave(status)
    raise typer.Exit(status)


@app.command(context_settings=_ENVIRONMENT, cls=LaunchCommand)
@flags.like(ServeSettings)
def doctor(ctx: typer.Context, **values: Any) -> None:
    """Look for what would go wrong with `stepwell serve` and the same flags, and say what to do about it."""
    with _errors_told():
        expect_extra("engine", "stepwell doctor")
    from stepwell.server.commands.doctor import examine, show
    from stepwell.server.commands.options import options_from, with_local_model

    with _errors_told():
        expect_variables(os.environ, _variables(ctx))
        _allow_faults(values["faults"])
        options = options_from(with_local_model(values, fetch=False), frozenset(), os.environ)
        status = show(examine(options), Console())
    raise typer.Exit(status)


@app.command(context_settings=_ENVIRONMENT)
def chat(
    target: flags.Target = "http://127.0.0.1:8000",
    api_key: flags.ChatKey = "",
    system: flags.System = "",
    max_tokens: flags.ChatTokens = None,
    temperature: flags.Temperature = 0.7,
    device_memory: flags.DeviceMemory = None,
    host_memory: flags.HostMemory = "4GiB",
    history: flags.History = "~/.local/state/stepwell/chat-history",
) -> None:
    """Talk to the server at TARGET, which may be any of the OpenAI API, or to the checkpoint in directory TARGET in this process.

    Answers are drawn as Markdown; below each stands what the cache saved, and how full the context is. Ctrl-C stops an answer;
    /branch goes back to an earlier question, /save writes the conversation, /help says the rest.
    """
    from pathlib import Path

    from stepwell.chat.keyboard import open_keyboard
    from stepwell.chat.session import COMMANDS, Session
    from stepwell.chat.talkers import open_talker

    console = Console()
    with _errors_told():
        memory = {"device_memory": device_memory, "host_memory": host_memory}
        with open_talker(target, api_key, max_tokens, temperature, memory) as talker:
            keyboard = open_keyboard(console, tuple(COMMANDS), Path(history).expanduser() if history else None)
            Session.begin(talker, console, system).talk(keyboard)


@app.command(context_settings=_ENVIRONMENT)
def batch(
    file: flags.BatchFile,
    output: flags.BatchOutput = None,
    url: flags.BatchUrl = "http://127.0.0.1:8000",
    api_key: flags.ChatKey = "",
    at_once: flags.AtOnce = 8,
) -> None:
    """Send the calls of FILE to a server, which answers them when nobody else waits; run again, it goes on where it stopped."""
    from pathlib import Path

    from stepwell.replay.wire import Server
    from stepwell.server.commands.batch import run_batch

    console = Console(stderr=True)
    with _errors_told():
        expect_extra("client", "stepwell batch")
        server = Server(url, api_key=api_key.split()[0] if api_key.split() else "none")
        faults = run_batch(Path(file), Path(output or f"{file}.out"), server, at_once, console)
    raise typer.Exit(1 if faults else 0)


def _variables(ctx: typer.Context) -> set[str]:
    """Names of variables that mean something to one of the commands."""
    assert ctx.parent is not None
    commands = ctx.parent.command.commands.values()  # type: ignore[attr-defined]
    names = {str(param.name) for command in commands for param in command.params}
    return {f"{ENVIRONMENT}_{name.upper()}" for name in names} | {_TEST_BUILD}


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the user set this parameter, on the command line or elsewhere."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _allow_faults(faults: list[str] | None) -> None:
    if faults and find_spec("stepwell.testing") is None:
        raise ConfigError(
            "--fault breaks things on purpose, by a part that only a clone of the repository has: leave it out"
        )
    if faults and os.environ.get(_TEST_BUILD) != "1":
        raise ConfigError(
            "--fault breaks things on purpose: leave it out, or set STEPWELL_TEST_BUILD=1 for a server under test"
        )


@contextlib.contextmanager
def _errors_told() -> Iterator[None]:
    """Errors that are meant for users, without a traceback."""
    try:
        yield
    except StepwellError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(2) from None
