"""Answers the lines of batches while no other call waits: one batch of each owner at a time, owners by turns."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import orjson
from fastapi import Request, Response

from stepwell.sched.request import MAX_PRIORITY
from stepwell.server.batches.lines import Line, answered, append, calls, faults_of
from stepwell.server.batches.store import OPEN, Batch, BatchStore, NoRoom
from stepwell.server.batches.turns import LOOK, Turns, wake_after
from stepwell.server.http.errors import any_problem
from stepwell.server.http.gate import with_caller
from stepwell.server.http.keys import Caller
from stepwell.server.http.parts import Parts

log = logging.getLogger("stepwell.server")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True)
class _Answers:
    """The two files of one batch's answers, unbuffered, and how many lines each has. `full`: why one more did not fit."""

    batch: Batch
    good: FileIO
    bad: FileIO
    counts: dict[str, int]
    full: str = ""


class Worker:
    """Owns the batches that have not ended. `start` it once; it ends with the server's door."""

    __slots__ = ("_handlers", "_news", "_parts", "_store", "_task", "_turns", "_working")

    def __init__(self, parts: Parts, store: BatchStore, handlers: Mapping[str, Handler]) -> None:
        self._parts = parts
        self._store = store
        self._handlers = handlers
        self._news = asyncio.Event()
        self._turns = Turns(lambda: parts.client.waiting == 0)
        self._working: dict[str, asyncio.Task[None]] = {}  # by owner
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """There is a new batch."""
        self._news.set()

    async def _run(self) -> None:
        while self._parts.door.open and self._parts.client.dead is None:
            self._news.clear()
            for batch in self._store.batches() if self._open else ():
                if batch.status in OPEN and batch.owner not in self._working:
                    self._begin(batch)
            async with wake_after(1.0):
                await self._news.wait()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _begin(self, batch: Batch) -> None:
        def ended(_: asyncio.Task[None]) -> None:
            del self._working[batch.owner]
            self._news.set()

        self._working[batch.owner] = asyncio.create_task(self._work(batch))
        self._working[batch.owner].add_done_callback(ended)

    @property
    def _open(self) -> bool:
        return self._parts.door.open and self._parts.client.trouble is None

    async def _work(self, batch: Batch) -> None:
        """Bring one batch to its end, or as far as it comes before the server's."""
        try:
            if batch.status == "validating":
                batch = await self._validated(batch)
            if batch.status == "in_progress":
                batch = await self._answered(batch)
            if batch.status == "cancelling":
                self._end(batch, "cancelled")
            elif batch.status == "finalizing":
                self._end(batch, "completed")
        except Exception as error:  # one batch must not end the others'
            kind = "storage" if isinstance(error, OSError | NoRoom) else "server_error"
            log.log(logging.WARNING if kind == "storage" else logging.ERROR, "batch %s has failed: %s", batch.id, error)
            now = self._store.batch(batch.owner, batch.id) or batch
            try:
                self._end(msgspec.structs.replace(now, faults=((0, kind, str(error)),)), "failed")
            except OSError as again:  # the folder takes nothing: the next start tries this batch again
                log.error("batch %s: its end could not be written: %s", batch.id, again)

    async def _validated(self, batch: Batch) -> Batch:
        path, most = self._store.path(batch.input_file_id), self._parts.limits.body_bytes
        faults, count = await asyncio.to_thread(faults_of, path, batch.endpoint, most)
        now = self._store.batch(batch.owner, batch.id)
        if now is None or now.status != "validating":  # cancelled meanwhile
            return batch if now is None else now
        if faults:
            return self._end(msgspec.structs.replace(batch, faults=tuple(faults), total=count), "failed")
        good, bad = self._store.add_answers(batch.owner, batch.id)
        return self._store.keep(
            msgspec.structs.replace(
                batch,
                status="in_progress",
                in_progress_at=_now(),
                total=count,
                output_file_id=good.id,
                error_file_id=bad.id,
            )
        )

    async def _answered(self, batch: Batch) -> Batch:
        """Answer every line that has no answer yet. Raises NoRoom where an answer does not fit any more."""
        paths = [self._store.path(file_id) for file_id in (batch.output_file_id, batch.error_file_id)]
        done = [await asyncio.to_thread(_done, path) for path in paths]
        with paths[0].open("ab", buffering=0) as good, paths[1].open("ab", buffering=0) as bad:
            answers = _Answers(batch, good, bad, {"completed": len(done[0]), "failed": len(done[1])})
            try:
                await self._answer_lines(answers, set().union(*done))
            finally:
                for file_id in (batch.output_file_id, batch.error_file_id):
                    self._store.settle(file_id)
        return self._after(answers)

    async def _answer_lines(self, answers: _Answers, done: set[str]) -> None:
        batch, running = answers.batch, set[asyncio.Task[None]]()
        lines = calls(self._store.path(batch.input_file_id), self._parts.limits.body_bytes)
        try:
            while (line := await asyncio.to_thread(_next, lines, done)) is not None:
                if not await self._turns.take(batch.owner, lambda: self._goes_on(answers)):
                    break
                task = asyncio.create_task(self._answer(answers, line))
                running.add(task)
                task.add_done_callback(running.discard)
                task.add_done_callback(lambda _: self._turns.give(batch.owner))
            while running and self._goes_on(answers):
                await asyncio.wait(running, timeout=LOOK)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _after(self, answers: _Answers) -> Batch:
        now = self._store.batch(answers.batch.owner, answers.batch.id) or answers.batch
        whole = sum(answers.counts.values()) >= now.total and now.status == "in_progress"
        state = {"status": "finalizing", "finalizing_at": _now()} if whole else {}
        batch = self._store.keep(msgspec.structs.replace(now, **answers.counts, **state))
        if answers.full:
            raise NoRoom(answers.full)
        return batch

    def _goes_on(self, answers: _Answers) -> bool:
        now = self._store.batch(answers.batch.owner, answers.batch.id)
        return self._open and now is not None and now.status == "in_progress" and not answers.full

    async def _answer(self, answers: _Answers, line: Line) -> None:
        batch, name = answers.batch, f"batch_req_{os.urandom(12).hex()}"
        caller = Caller(name, self._parts.keys.salt_of(batch.owner), batch.owner)
        try:
            response = await self._handlers[batch.endpoint](_request(batch.endpoint, line.body, caller))
            status, body = response.status_code, bytes(response.body)
        except Exception as error:  # a line at fault is told in the error file
            problem = any_problem(error)
            if problem.status in (499, 503):  # the server ends, or has no room: this line is answered another time
                return
            status, body = problem.status, orjson.dumps(problem.body)
        told = {"status_code": status, "request_id": name, "body": orjson.Fragment(body)}
        text = orjson.dumps({"id": name, "custom_id": line.custom_id, "response": told, "error": None}) + b"\n"
        self._write(answers, text, failed=status >= 400)

    def _write(self, answers: _Answers, text: bytes, failed: bool) -> None:
        if answers.full:
            return
        batch = answers.batch
        file_id, file = (batch.error_file_id, answers.bad) if failed else (batch.output_file_id, answers.good)
        try:
            self._store.grow(file_id, len(text))
        except NoRoom as error:
            answers.full = str(error)
            return
        try:
            append(file, text)
        except OSError as error:
            self._store.grow(file_id, -len(text))
            answers.full = str(error)
            return
        answers.counts["failed" if failed else "completed"] += 1
        now = self._store.batch(batch.owner, batch.id) or batch
        self._store.count(msgspec.structs.replace(now, **answers.counts))

    def _end(self, batch: Batch, status: str) -> Batch:
        return self._store.keep(msgspec.structs.replace(batch, status=status, **{f"{status}_at": _now()}))


def _request(path: str, body: dict[str, Any], caller: Caller) -> Request:
    """A call as if it had come by HTTP: whole, not streamed, as patient as any can be."""
    sent = orjson.dumps({**body, "priority": MAX_PRIORITY, "stream": False})
    waiting = [{"type": "http.request", "body": sent, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.Event().wait()  # nobody hangs up
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    return Request(with_caller(scope, caller), receive)


def _done(path: Path) -> set[str]:
    """The custom_ids that a file of answers has, without an unfinished last line. Reads the file."""
    with path.open("r+b") as file:
        return answered(file)


def _next(lines: Iterator[Line], done: set[str]) -> Line | None:
    """The next line that has no answer; None where there is none. Reads a file."""
    return next((line for line in lines if line.custom_id not in done), None)


def _now() -> int:
    return int(time.time())
