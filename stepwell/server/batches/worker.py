"""Answers the lines of batches, one batch after the other, while no other call waits."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec
import orjson
from fastapi import Request, Response

from stepwell.sched.request import MAX_PRIORITY
from stepwell.server.batches.store import OPEN, Batch, BatchStore, NoRoom
from stepwell.server.errors import any_problem
from stepwell.server.gate import with_caller
from stepwell.server.keys import Caller
from stepwell.server.parts import Parts

log = logging.getLogger("stepwell.server")

MAX_LINES = 50_000
_AT_ONCE = 8  # lines that are answered side by side
_LOOK = 0.05  # seconds between two looks at whether anyone else waits
_FAULTS = 100  # of an input file, that are told

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Line:
    """One call of a batch."""

    custom_id: str
    body: dict[str, Any]


@dataclass(slots=True)
class Worker:
    """Owns the batches that have not ended. `start` it once; it ends with the server's door."""

    parts: Parts
    store: BatchStore
    handlers: Mapping[str, Handler]
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._open:
            batch = next((b for b in self.store.batches() if b.status in OPEN), None)
            if batch is None:
                self.news.clear()
                with_timeout = asyncio.wait_for(self.news.wait(), 1.0)
                try:
                    await with_timeout
                except TimeoutError:
                    continue
            else:
                await self._work(batch)

    @property
    def _open(self) -> bool:
        return self.parts.door.open and self.parts.client.dead is None

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
            log.exception("batch %s has failed", batch.id)
            kind = "storage" if isinstance(error, OSError | NoRoom) else "server_error"
            try:
                self._end(msgspec.structs.replace(batch, faults=((0, kind, str(error)),)), "failed")
            except OSError as again:  # the folder takes nothing: the next start tries this batch again
                log.error("batch %s: its end could not be written: %s", batch.id, again)

    async def _validated(self, batch: Batch) -> Batch:
        faults, count = await asyncio.to_thread(self._faults, batch)
        now = self.store.batch(batch.owner, batch.id)
        if now is None or now.status != "validating":  # cancelled meanwhile
            return batch if now is None else now
        if faults:
            return self._end(msgspec.structs.replace(batch, faults=tuple(faults), total=count), "failed")
        outputs = [
            self.store.add_file(batch.owner, f"{batch.id}_{kind}.jsonl", "batch_output", None).id
            for kind in ("output", "error")
        ]
        return self.store.keep(
            msgspec.structs.replace(
                batch,
                status="in_progress",
                in_progress_at=_now(),
                total=count,
                output_file_id=outputs[0],
                error_file_id=outputs[1],
            )
        )

    def _faults(self, batch: Batch) -> tuple[list[tuple[int, str, str]], int]:
        """What keeps an input file from being used, by line; and its lines."""
        faults: list[tuple[int, str, str]] = []
        seen: set[str] = set()
        count = 0
        for count, text in enumerate(self.store.lines(batch.input_file_id), 1):
            fault = _fault(text, batch.endpoint, seen)
            if fault and len(faults) < _FAULTS:
                faults.append((count, *fault))
            if count > MAX_LINES:
                return [(count, "too_many_lines", f"a batch has at most {MAX_LINES:,} lines")], count
        return faults or ([] if count else [(0, "empty_file", "the file has no line")]), count

    async def _answered(self, batch: Batch) -> Batch:
        """Answer every line that has no answer yet."""
        with self.store.append(batch.output_file_id) as good, self.store.append(batch.error_file_id) as bad:
            done = {name: _ids(file) for name, file in (("completed", good), ("failed", bad))}
            counts = {name: len(ids) for name, ids in done.items()}
            running: set[asyncio.Task[None]] = set()
            try:
                for line in _lines(self.store.lines(batch.input_file_id)):
                    if line.custom_id in done["completed"] or line.custom_id in done["failed"]:
                        continue
                    if not await self._room(batch, running):
                        break
                    task = asyncio.create_task(self._answer(batch, line, good, bad, counts))
                    running.add(task)
                    task.add_done_callback(running.discard)
                while running and self._goes_on(batch):
                    await asyncio.wait(running, timeout=_LOOK)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        return self._after(batch, counts)

    def _after(self, batch: Batch, counts: Mapping[str, int]) -> Batch:
        now = self.store.batch(batch.owner, batch.id) or batch
        for file_id in (batch.output_file_id, batch.error_file_id):
            info = self.store.file(batch.owner, file_id)
            if info is not None:
                self.store.measured(info)
        whole = sum(counts.values()) >= now.total and now.status == "in_progress"
        state = {"status": "finalizing", "finalizing_at": _now()} if whole else {}
        return self.store.keep(msgspec.structs.replace(now, **counts, **state))

    async def _room(self, batch: Batch, running: set[asyncio.Task[None]]) -> bool:
        """Wait until nobody else waits and few enough lines run; False where the batch is to go no further."""
        while self._goes_on(batch):
            if len(running) < _AT_ONCE and self.parts.client.waiting == 0 and self.store.free:
                return True
            await asyncio.sleep(_LOOK)
        return False

    def _goes_on(self, batch: Batch) -> bool:
        now = self.store.batch(batch.owner, batch.id)
        return self._open and now is not None and now.status == "in_progress"

    async def _answer(self, batch: Batch, line: Line, good: BinaryIO, bad: BinaryIO, counts: dict[str, int]) -> None:
        name = f"batch_req_{os.urandom(12).hex()}"
        caller = Caller(name, self.parts.keys.salt_of(batch.owner), batch.owner)
        try:
            response = await self.handlers[batch.endpoint](_request(batch.endpoint, line.body, caller))
            status, body = response.status_code, bytes(response.body)
        except Exception as error:  # a line at fault is told in the error file
            problem = any_problem(error)
            if problem.status in (499, 503):  # the server ends, or has no room: this line is answered another time
                return
            status, body = problem.status, orjson.dumps(problem.body)
        told = {"status_code": status, "request_id": name, "body": orjson.Fragment(body)}
        failed = status >= 400
        file = bad if failed else good
        file.write(orjson.dumps({"id": name, "custom_id": line.custom_id, "response": told, "error": None}) + b"\n")
        file.flush()
        counts["failed" if failed else "completed"] += 1
        now = self.store.batch(batch.owner, batch.id) or batch
        self.store.keep(msgspec.structs.replace(now, **counts))

    def _end(self, batch: Batch, status: str) -> Batch:
        return self.store.keep(msgspec.structs.replace(batch, status=status, **{f"{status}_at": _now()}))


def _request(path: str, body: dict[str, Any], caller: Caller) -> Request:
    """A call as if it had come by HTTP: whole, not streamed, as patient as any can be."""
    sent = orjson.dumps({"priority": MAX_PRIORITY, **body, "stream": False})
    waiting = [{"type": "http.request", "body": sent, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.Event().wait()  # nobody hangs up
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    return Request(with_caller(scope, caller), receive)


def _fault(text: bytes, endpoint: str, seen: set[str]) -> tuple[str, str] | None:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "invalid_json_line", "this line is not valid JSON"
    if not isinstance(line, dict) or not isinstance(line.get("body"), dict):
        return "invalid_request", "a line is an object with custom_id, method, url and body"
    name = line.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= 512:
        return "missing_custom_id", "custom_id must be a string of 1 to 512 characters"
    if name in seen:
        return "duplicate_custom_id", f"custom_id {name!r} is there twice"
    seen.add(name)
    if line.get("method", "POST") != "POST" or line.get("url") != endpoint:
        return "invalid_url", f"method and url must be POST and {endpoint}, as the batch says"
    return None


def _lines(texts: Iterator[bytes]) -> Iterator[Line]:
    for text in texts:
        line = orjson.loads(text)
        yield Line(line["custom_id"], line["body"])


def _ids(file: BinaryIO) -> set[str]:
    """Who has an answer in this file."""
    file.seek(0)
    found = {str(orjson.loads(line)["custom_id"]) for line in file}
    file.seek(0, os.SEEK_END)
    return found


def _now() -> int:
    return int(time.time())
