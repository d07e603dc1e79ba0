"""Reads a request body: bounded, strict JSON, an object at the top."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect

from stepwell.server.http.errors import ApiError, Problem

_DRAINED_AT_MOST = 64 * 2**20


class Body(dict[str, Any]):
    """An object, and the bytes that it was sent in."""

    def __init__(self, value: dict[str, Any], size: int) -> None:
        super().__init__(value)
        self.size = size


async def read_json(request: Request, limit: int, seconds: float = 60.0) -> Body:
    """The body as an object.

    Raises ApiError: 413 above `limit` bytes, 408 if it is not there after `seconds`, 415 where it is compressed, 400 where it is
    not JSON or not an object.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, limit)
    except TimeoutError as error:
        message = f"the body did not arrive within {seconds:g} s (--body-timeout): send it again"
        raise ApiError(Problem(408, message, None, "body_timeout", {"connection": "close"})) from error
    except ClientDisconnect as error:
        raise ApiError(Problem(499, "the client has gone")) from error
    encoding = request.headers.get("content-encoding", "")
    if encoding.lower() not in ("", "identity"):
        message = f"the body is encoded as {encoding[:40]!r}: send it uncompressed, without the header content-encoding"
        raise ApiError(Problem(415, message, None, "body_encoding"))
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(Problem(400, f"the body is not valid JSON: {error}", None, "invalid_json")) from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ApiError(Problem(400, f"the body must be a JSON object, not {kind}", None, "invalid_json"))
    return Body(value, len(body))


async def _read(request: Request, limit: int) -> bytes:
    """Bytes of a body. A body that is too long is read to its end, within limits, so that the client reads the error."""
    chunks: list[bytes] = []
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= limit:
            chunks.append(chunk)
        elif length > _DRAINED_AT_MOST:
            break
        else:
            chunks.clear()
    if length > limit:
        message = f"the body has {length:,} bytes or more; at most {limit:,} are accepted (--max-body-size)"
        raise ApiError(Problem(413, message, None, "body_too_large", {"connection": "close"}))
    return b"".join(chunks)
