"""The routes of OpenAI's files and batches."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import orjson
from fastapi import FastAPI, Request, Response
from pydantic import Field
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse
from starlette.types import Message

from stepwell.base.errors import RequestError
from stepwell.server.batches.store import OPEN, Batch, BatchStore, FileInfo, NoRoom
from stepwell.server.batches.worker import Handler, Worker
from stepwell.server.http.errors import ApiError, Problem
from stepwell.server.http.gate import caller_of
from stepwell.server.http.parts import Parts
from stepwell.server.read import schema
from stepwell.server.read.reading import CallReader

_FRAME = 1 << 16  # bytes of a form around its file
_MOST = 100  # items of a list
_TIMES = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "cancelling_at", "cancelled_at")


class BatchCall(schema.Named):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, Annotated[str, Field(max_length=512)]] | None = Field(default=None, max_length=16)


class BatchRoutes:
    """One method a route; without a store all of them say how to get one."""

    def __init__(self, parts: Parts, calls: CallReader, handlers: Mapping[str, Handler]) -> None:
        self._calls = calls
        self._handlers = handlers
        self._store = parts.batches
        self._worker = None if parts.batches is None else Worker(parts, parts.batches, handlers)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes, and begin to work."""
        for path, method, handler in (
            ("/v1/files", "POST", self.upload),
            ("/v1/files", "GET", self.files),
            ("/v1/files/{file_id}", "GET", self.file),
            ("/v1/files/{file_id}", "DELETE", self.delete),
            ("/v1/files/{file_id}/content", "GET", self.content),
            ("/v1/batches", "POST", self.create),
            ("/v1/batches", "GET", self.batches),
            ("/v1/batches/{batch_id}", "GET", self.batch),
            ("/v1/batches/{batch_id}/cancel", "POST", self.cancel),
        ):
            app.add_api_route(path, handler, methods=[method], include_in_schema=False)
        if self._worker is not None:
            self._worker.start()

    async def upload(self, request: Request) -> Response:
        store = self._opened()
        try:
            with store.coming(caller_of(request).owner) as file_id:
                form = await _form(request, partial(store.expect, file_id))
                file, purpose = form.get("file"), form.get("purpose")
                if not isinstance(file, UploadFile) or purpose != "batch":
                    raise RequestError("send multipart/form-data with a file, and purpose batch", "file")
                store.expect(file_id, file.size or 0)
                await asyncio.to_thread(_copy, file.file, store.path(file_id))
                info = store.add(file_id, file.filename or "file")
        except NoRoom as error:
            raise ApiError(Problem(413, str(error), "file", "no_room")) from error
        return _json(_file(info))

    async def files(self, request: Request) -> Response:
        return _json(
            {
                "object": "list",
                "data": [_file(f) for f in self._opened().files(caller_of(request).owner)],
                "has_more": False,
            }
        )

    async def file(self, request: Request, file_id: str) -> Response:
        return _json(_file(self._found(request, file_id)))

    async def delete(self, request: Request, file_id: str) -> Response:
        info = self._found(request, file_id)
        used = (b for b in self._opened().batches(info.owner) if b.status in OPEN)
        if any(info.id in (b.input_file_id, b.output_file_id, b.error_file_id) for b in used):
            raise ApiError(Problem(409, "a batch is at work on this file: cancel it first", None, "file_in_use"))
        self._opened().delete_file(info)
        return _json({"id": info.id, "object": "file", "deleted": True})

    async def content(self, request: Request, file_id: str) -> Response:
        return FileResponse(self._opened().path(self._found(request, file_id).id), media_type="application/jsonl")

    async def create(self, request: Request) -> Response:
        store = self._opened()
        call = await self._calls.read(BatchCall, request)
        if call.endpoint not in self._handlers:
            raise RequestError(
                f"endpoint must be one of {', '.join(self._handlers)}, not {call.endpoint[:60]!r}", "endpoint"
            )
        owner = caller_of(request).owner
        if store.file(owner, call.input_file_id) is None:
            raise _missing("file", call.input_file_id)
        batch = Batch(
            f"batch_{os.urandom(12).hex()}",
            owner,
            call.endpoint,
            call.input_file_id,
            call.completion_window,
            int(time.time()),
            call.metadata,
        )
        try:
            store.begin(batch)
        except NoRoom as error:
            raise ApiError(Problem(429, str(error), None, "too_many_batches")) from error
        assert self._worker is not None
        self._worker.wake()
        return _json(_batch(batch))

    async def batches(self, request: Request) -> Response:
        mine = self._opened().batches(caller_of(request).owner)[::-1]
        after = request.query_params.get("after")
        first = next((i + 1 for i, batch in enumerate(mine) if batch.id == after), 0)
        shown = mine[first : first + _MOST]
        more = len(mine) > first + _MOST
        return _json({"object": "list", "data": [_batch(b) for b in shown], "has_more": more})

    async def batch(self, request: Request, batch_id: str) -> Response:
        return _json(_batch(self._batch(request, batch_id)))

    async def cancel(self, request: Request, batch_id: str) -> Response:
        batch = self._batch(request, batch_id)
        if batch.status in ("validating", "in_progress"):
            now = int(time.time())
            batch = self._opened().keep(msgspec.structs.replace(batch, status="cancelling", cancelling_at=now))
        return _json(_batch(batch))

    def _opened(self) -> BatchStore:
        if self._store is None:
            message = "there are no files and batches here: start the server with --batches PATH:SIZE"
            raise ApiError(Problem(404, message, None, "batches_off"))
        return self._store

    def _found(self, request: Request, file_id: str) -> FileInfo:
        info = self._opened().file(caller_of(request).owner, file_id)
        if info is None:
            raise _missing("file", file_id)
        return info

    def _batch(self, request: Request, batch_id: str) -> Batch:
        batch = self._opened().batch(caller_of(request).owner, batch_id)
        if batch is None:
            raise _missing("batch", batch_id)
        return batch


async def _form(request: Request, expect: Callable[[int], None]) -> Mapping[str, Any]:
    """The fields of a form; each part of its body is expected, less the frame, before it is kept. Raises RequestError, or as `expect`."""
    came = 0

    async def receive() -> Message:
        nonlocal came
        message = await request.receive()
        came += len(message.get("body", b""))
        expect(max(0, came - _FRAME))
        return message

    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RequestError("send multipart/form-data with a file, and purpose batch", "file")
    return await Request(request.scope, receive).form(max_files=1, max_fields=8)


def _copy(source: BinaryIO, path: Path) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _file(info: FileInfo) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": info.id,
        "object": "file",
        "bytes": info.bytes,
        "created_at": info.created_at,
        "status": "processed",
    }
    return told | {"filename": info.filename, "purpose": info.purpose}


def _batch(batch: Batch) -> dict[str, Any]:
    faults = [{"line": line, "code": code, "message": message, "param": None} for line, code, message in batch.faults]
    told: dict[str, Any] = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "input_file_id": batch.input_file_id,
    }
    told |= {"completion_window": batch.completion_window, "status": batch.status, "created_at": batch.created_at}
    told |= {"output_file_id": batch.output_file_id or None, "error_file_id": batch.error_file_id or None}
    told |= {name: getattr(batch, name) for name in _TIMES}
    return told | {
        "errors": {"object": "list", "data": faults} if faults else None,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata,
    }


def _missing(kind: str, name: str) -> ApiError:
    return ApiError(Problem(404, f"there is no {kind} {name[:80]!r} of yours here", None, f"{kind}_not_found"))


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
