"""`stepwell demo`, and `python -m stepwell.demo`: exit status 0 where every answer through the cache equals the cold one, else 1."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.extras import expect_extra
from stepwell.demo.client import Answer, ask, call, connect
from stepwell.demo.report import Row, complaints, summarise, table
from stepwell.demo.script import Script, Turn, speaking_order, write_scripts
from stepwell.demo.server import Server, ServerFailed, free_port, serve_command

if TYPE_CHECKING:
    from openai import OpenAI

CONVERSATIONS = 6
TURNS = 5
# The device holds about two of the six conversations at their longest, the host all of them.
FLAGS = (
    *("--device-memory", "12MiB", "--host-memory", "128MiB", "--dtype", "float32"),
    *("--max-num-batched-tokens", "1024", "--max-num-seqs", "4", "--log-level", "info"),
)
_START_SECONDS = 90.0
MODEL = Path(__file__).resolve().parent / "model"
"""The small trained model, which is a part of the package (`tiny/model` in the repository)."""
_ASKED = ("Who are you?", "What is a rung?", "Which day comes after Friday?", "What is 47 + 35?")
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def demo_command() -> None:
    """Serve a small trained hybrid model, which comes with the package, and push agent conversations through its cache.

    Shows for every turn where its prompt came from, the time to its first token, the same without the cache, and whether the answers
    agree. Needs no GPU and no network; takes about two minutes on two cores.
    """
    raise typer.Exit(main())


def main() -> int:
    """Run the demo; returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console()
    try:
        expect_extra("engine", "stepwell demo")
        with tempfile.TemporaryDirectory(prefix="stepwell-demo-") as folder:
            return _run(console, Path(folder))
    except ConfigError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except ServerFailed as failed:
        console.print(failed.log, markup=False, highlight=False)
        console.print(f"[bold red]The demo failed:[/] {failed}")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(console: Console, folder: Path) -> int:
    port = free_port()
    console.print(f"stepwell serve {MODEL} {' '.join(FLAGS)}", highlight=False, soft_wrap=True)
    with Server(serve_command(MODEL, port, FLAGS), port, folder / "server.log") as server:
        with console.status("Starting the server"):
            server.wait_until_healthy(_START_SECONDS)
        rows, said = _converse(console, server)
    joint = joint_line(server)
    console.print(table(rows))
    for question, answer in said:
        console.print(f"  {question}  →  {answer}", markup=False, highlight=False, soft_wrap=True)
    if joint:
        console.print(f"The server's own account: {joint}", markup=False, highlight=False, soft_wrap=True)
    found = complaints(rows)
    for line in found:
        console.print(line, style="red", markup=False, highlight=False)
    print(json.dumps(summarise(rows)))
    return 1 if found else 0


def _converse(console: Console, server: Server) -> tuple[list[Row], list[tuple[str, str]]]:
    """The turns of all conversations, and some questions outside of them with their answers."""
    from openai import OpenAIError

    scripts = write_scripts(CONVERSATIONS, TURNS)
    order = list(speaking_order(CONVERSATIONS, TURNS))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with connect(server.base_url) as client, Progress(*columns, console=console, transient=True) as progress:
            model = client.models.list().data[0].id
            rows = converse(client, model, scripts, order, progress)
            return rows, small_talk(client, model)
    except (OpenAIError, StepwellError) as error:
        raise server.failure(f"a request failed: {error}") from error


def converse(client: OpenAI, model: str, scripts: list[Script], order: list[Turn], progress: Progress) -> list[Row]:
    """Ask every turn through the cache; then ask the same prompts again, cold."""
    said = [[{"role": "system", "content": script.system}] for script in scripts]
    asked: list[tuple[Turn, list[dict[str, str]], Answer]] = []
    task = progress.add_task("through the cache", total=2 * len(order))
    for turn in order:
        messages = said[turn.conversation]
        messages.append({"role": "user", "content": scripts[turn.conversation].said[turn.turn]})
        answer = ask(client, model, messages, cold=False)
        asked.append((turn, list(messages), answer))
        messages.append({"role": "assistant", "content": answer.text})
        progress.advance(task)
    progress.update(task, description="the same, cold")
    rows: list[Row] = []
    for turn, messages, answer in asked:
        wanted = scripts[turn.conversation].wanted[turn.turn]
        rows.append(Row(turn, answer, ask(client, model, messages, cold=True), wanted))
        progress.advance(task)
    return rows


def small_talk(client: OpenAI, model: str) -> list[tuple[str, str]]:
    """Questions that a model can answer without having been told, and one that needs a tool."""
    said = [(question, call(client, model, question, [])) for question in _ASKED]
    question = "What is the weather in Paris?"
    return [*said, (question, call(client, model, question, [_WEATHER]))]


def joint_line(server: Server) -> str:
    """The line with which the engine accounts for its admissions when it stops; empty where it wrote none."""
    lines = [line for line in server.log_lines() if "joint:" in line]
    return lines[-1][lines[-1].index("joint:") :] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
