"""`stepwell batch FILE`: the calls of a file, sent to a server that answers them while no other call waits.

The file is OpenAI's for batches: a line `{"custom_id", "method", "url", "body"}` for each call. Answers are added to a file line by line;
asked again, the command sends what has no answer there yet.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stepwell.base.errors import ConfigError
from stepwell.replay.wire import Server, connected
from stepwell.sched.request import MAX_PRIORITY

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass(frozen=True, slots=True)
class Call:
    """One line: where it goes below the server's URL, and with what."""

    custom_id: str
    path: str
    body: dict[str, Any]


def run_batch(source: Path, target: Path, server: Server, at_once: int, console: Console) -> int:
    """Send what has no answer in `target` yet, at most `at_once` calls side by side; returns how many were answered with an error.

    Raises ConfigError where a file cannot be used; calls that no server has answered are left for the next time.
    """
    try:
        done = {str(line["custom_id"]) for line in _objects(_mended(target))} if target.exists() else set()
        calls = [call for call in _calls(source) if call.custom_id not in done]
        with target.open("a", encoding="utf-8") as file:
            return asyncio.run(_send(calls, file, server, at_once, console, len(done)))
    except OSError as error:
        raise ConfigError(f"cannot use {error.filename}: {error.strerror}") from error


async def _send(calls: list[Call], file: TextIO, server: Server, at_once: int, console: Console, done: int) -> int:
    columns = (TextColumn("calls"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    places, faults = asyncio.Semaphore(at_once), 0
    async with connected(server) as client:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("calls", total=len(calls) + done, completed=done)

            async def send(call: Call) -> None:
                nonlocal faults
                async with places:
                    status, body = await _answer(client, call)
                faults += status >= 400
                told = {"custom_id": call.custom_id, "response": {"status_code": status, "body": body}, "error": None}
                file.write(json.dumps(told) + "\n")
                file.flush()
                progress.advance(task)

            try:
                async with asyncio.TaskGroup() as group:
                    for call in calls:
                        group.create_task(send(call))
            except ExceptionGroup as errors:  # the first one ended the others
                raise errors.exceptions[0] from None
    return faults


async def _answer(client: AsyncOpenAI, call: Call) -> tuple[int, Any]:
    """Status and body of one call. Raises ConfigError if no server answers, or it has no room, or refuses the key."""
    from openai import APIConnectionError, APIStatusError

    body = {"priority": MAX_PRIORITY, **call.body, "stream": False}
    try:
        return 200, await client.post(call.path, body=body, cast_to=object)
    except APIStatusError as error:
        if error.status_code in (401, 403, 429, 503):
            raise ConfigError(
                f"the server refuses calls now ({error.message}): run the same command again later"
            ) from error
        return error.status_code, error.body
    except APIConnectionError as error:
        raise ConfigError(f"no server answers at {client.base_url} ({error}): give its URL with --url") from error


def _calls(source: Path) -> Iterator[Call]:
    seen: set[str] = set()
    for number, line in enumerate(_objects(source), 1):
        name, url, body = line.get("custom_id"), line.get("url"), line.get("body")
        if not isinstance(name, str) or not isinstance(url, str) or not isinstance(body, dict) or name in seen:
            raise ConfigError(f"{source}, call {number}: needs a custom_id of its own, a url and a body")
        seen.add(name)
        yield Call(name, url.removeprefix("/v1"), body)


def _mended(path: Path) -> Path:
    """The file of answers, without an unfinished last line."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
    return path


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}: not valid JSON: {error}") from error
            if not isinstance(value, dict):
                raise ConfigError(f"{path}, line {number}: must be a JSON object")
            yield value
