"""What every call passes on its way in: request id, key, whether the server still takes work; and its line in the log."""

from __future__ import annotations

import logging
import re
import secrets
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepwell.base.clock import Clock
from stepwell.server.http.errors import Problem, shutting_down
from stepwell.server.http.keys import Caller, Keys
from stepwell.server.observe.metrics import Metrics
from stepwell.server.observe.trace import trace_in
from stepwell.server.routes.page import PAGE_PATHS

log = logging.getLogger("stepwell.access")

_PATH_TOLD = 200
"""Characters of a path that a line of the log has."""

METRICS_PATH = "/metrics"
OPEN_PATHS = PAGE_PATHS | {"/health", "/ping", "/ready", METRICS_PATH}
"""Answered without an API key: probes, sums without text (unless they have a key of their own), and a page that asks for the key itself."""

_CALLER = "stepwell.caller"
_CHALLENGE = {"www-authenticate": "Bearer"}
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass(slots=True)
class Door:
    """Whether new work is accepted. Closed once, when the server is stopped."""

    open: bool = True


def caller_of(request: Request) -> Caller:
    """The sender of a request that has passed the gate."""
    caller = request.scope.get(_CALLER)
    return caller if isinstance(caller, Caller) else Caller("")


def with_caller(scope: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """The scope of a call that `caller` has sent, for what comes from within the server."""
    return scope | {_CALLER: caller}


class Gate:
    """ASGI middleware in front of all routes."""

    def __init__(self, app: ASGIApp, keys: Keys, door: Door, metrics: Metrics, clock: Clock) -> None:
        self._app = app
        self._keys = keys
        self._door = door
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.now()
        headers = Headers(scope=scope)
        answer = Answer(send, request_id_of(headers))
        try:
            problem = self._refusal(scope, headers, answer.request_id)
            if problem is None:
                await self._app(scope, receive, answer.send)
            else:
                self._metrics.refused(problem.status)
                await problem.response(scope["path"])(scope, receive, answer.send)
        finally:
            self._log(scope, answer, self._clock.now() - began)

    def _refusal(self, scope: Scope, headers: Headers, request_id: str) -> Problem | None:
        """Why this call goes no further; otherwise its caller is noted."""
        sent = headers.get("authorization"), headers.get("x-api-key")
        if scope["path"] == METRICS_PATH and not self._keys.may_read_metrics(*sent):
            message = "the key of the metrics is needed: send 'Authorization: Bearer KEY' with what --metrics-key says"
            return Problem(401, message, None, "invalid_api_key", _CHALLENGE)
        owner = self._keys.owner(*sent)
        if owner is None:
            if scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
                message = "a key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY' with one of the server's keys"
                return Problem(401, message, None, "invalid_api_key", _CHALLENGE)
            owner = ""
        scope[_CALLER] = Caller(request_id, self._keys.salt_of(owner), owner)
        if not self._door.open and scope["method"] == "POST":
            return shutting_down()
        return None

    def _log(self, scope: Scope, answer: Answer, seconds: float) -> None:
        level = logging.INFO if answer.status >= 400 else logging.DEBUG  # what was generated is told at its end
        if log.isEnabledFor(level):
            extra = {"request_id": answer.request_id, "status": answer.status, "seconds": round(seconds, 6)}
            if answer.completion is not None:
                extra["completion"] = answer.completion
            if (trace := trace_in(scope)) is not None:
                extra["trace_id"] = trace.id
            log.log(level, "%s %s", scope["method"], scope["path"][:_PATH_TOLD], extra=extra)


def cors(origins: tuple[str, ...]) -> dict[str, Any]:
    """Arguments that tell CORSMiddleware which pages may call."""
    return {
        "allow_origins": origins,
        "allow_methods": ("GET", "POST", "DELETE"),
        "allow_headers": ("*",),
        "expose_headers": ("x-request-id", "request-id", "x-stepwell-resume", "retry-after"),
    }


class Answer:
    """Passes an answer on. Its request id is the caller's own, or the id of the completion, or a new one; `completion` is the
    first part of the names of the engine's sequences."""

    def __init__(self, send: Send, given: str | None) -> None:
        self._send = send
        self._given = given
        self.request_id = given or f"req-{secrets.token_hex(12)}"
        self.status = 0  # nothing was sent: the caller had gone
        self.completion: str | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            self.completion = headers.get("x-request-id")
            self.request_id = self._given or self.completion or self.request_id
            headers["x-request-id"] = headers["request-id"] = self.request_id  # the second is Anthropic's name for it
        await self._send(message)


def request_id_of(headers: Headers) -> str | None:
    """The id that the caller gave, where it is one that may stand in logs and headers."""
    given = headers.get("x-request-id")
    return given if given is not None and _REQUEST_ID.fullmatch(given) else None
