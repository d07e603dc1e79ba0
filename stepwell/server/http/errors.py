"""Errors as API clients read them: `{"error": {"message", "type", "param", "code"}}` with a fitting status, or, on the routes
of Anthropic's API, `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import Response
from starlette.exceptions import HTTPException

from stepwell.base.errors import CapacityError, EngineDead, RequestError, StepwellError
from stepwell.server.prompt.templates import Closing

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_MESSAGES_TYPES = {**_TYPES, 408: "timeout_error", 413: "request_too_large", 503: "overloaded_error"}
_MESSAGES_ROUTE = "/v1/messages"
_PATH_SHOWN = 100
_RETRY_WHILE_DRAINING = "5"
_RETRY_WHILE_AWAY = "5"


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal or failure, ready to be sent."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    messages_text: str | None = None  # for clients of Anthropic's API, where they look for other words

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def messages_body(self) -> dict[str, Any]:
        """As clients of Anthropic's API read it; there, the message alone names the field."""
        kind = _MESSAGES_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.messages_text or self.message}}

    def response(self, path: str = "") -> Response:
        """An answer in the shape that clients of the route `path` read."""
        messages = path == _MESSAGES_ROUTE or path.startswith(_MESSAGES_ROUTE + "/")
        body = self.messages_body if messages else self.body
        return Response(orjson.dumps(body), self.status, self.headers, "application/json")


class ApiError(StepwellError):
    """Ends a call with `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class PromptTooLong(RequestError):
    """A prompt of `tokens` tokens, or more, for a context of `context`. Clients know it by these very words, and then compact."""

    def __init__(self, field: str, tokens: int, context: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, your {field} resulted in {tokens} tokens, "
            f"and at least one must be left for an answer. Please reduce the length of the {field}.",
            field,
        )
        self.tokens = tokens
        self.context = context


def timed_out(seconds: float) -> ApiError:
    """A call has taken longer than the server allows."""
    message = f"the call took longer than {seconds:g} s: ask for fewer tokens, or raise --request-timeout"
    return ApiError(Problem(408, message, None, "timeout"))


def queued_too_long(seconds: float, retry_after: int) -> ApiError:
    """A sequence was not admitted in time."""
    message = f"the call waited longer than {seconds:g} s (--queue-timeout): try again later"
    return ApiError(Problem(503, message, None, "queue_timeout", {"retry-after": str(retry_after)}))


def queue_full(waiting: int, limit: int, retry_after: int) -> ApiError:
    """The queue has no room. Clients try again after a 503; some give up for good after a 429."""
    message = f"{waiting} sequences wait already, of at most {limit} (--max-queue): try again later"
    return ApiError(Problem(503, message, None, "queue_full", {"retry-after": str(retry_after)}))


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same fault in the words of an API that has other `names` for some fields."""
    field, dot, rest = (error.param or "").partition(".")
    if field not in names:
        return error
    text = str(error)
    if isinstance(error, PromptTooLong):
        return PromptTooLong(names[field], error.tokens, error.context)
    text = names[field] + text.removeprefix(field) if text.startswith(field) else text
    return RequestError(text, names[field] + dot + rest)


class GenerationFailed(StepwellError):
    """The engine lives but could not finish this request."""


class EngineAway(EngineDead):
    """The engine does not serve at present and may do so again; `code` says why: `engine_hung` or `engine_restarting`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ShuttingDown(EngineDead):
    """The server has been stopped: calls that were still open end with this error."""


def shutting_down() -> Problem:
    """The error for calls that come while the server ends, and for answers that the end cuts off."""
    message = "the server is shutting down: send this to another one, or try again later"
    return Problem(503, message, None, "shutting_down", {"retry-after": _RETRY_WHILE_DRAINING})


def problem_of(error: StepwellError) -> Problem:
    """An error as a client sees it."""
    match error:
        case ApiError():
            return error.problem
        case PromptTooLong():
            text = f"prompt is too long: {error.tokens} tokens > {error.context - 1} maximum"
            return Problem(400, str(error), error.param, "context_length_exceeded", messages_text=text)
        case RequestError():
            return Problem(400, str(error), error.param, "invalid_value")
        case CapacityError():
            numbers = f"{error} (needed {error.needed:,}, available {error.available:,})"
            return Problem(400, numbers, None, "capacity_exceeded")
        case ShuttingDown() | Closing():
            return shutting_down()
        case EngineAway():
            return Problem(503, str(error), None, error.code, {"retry-after": _RETRY_WHILE_AWAY})
        case EngineDead():
            return Problem(503, f"the engine has stopped: {error}", None, "engine_dead")
        case _:
            return Problem(500, str(error), None, "generation_failed")


def unrouted(error: HTTPException, method: str, path: str, known: Collection[str]) -> Problem:
    """The answer to a call of an unknown path, or with a method that the path does not take; `known` are the paths that exist."""
    allowed = dict(error.headers or {}).get("Allow")
    if error.status_code == 405 and allowed:
        message = f"{path[:_PATH_SHOWN]} takes {allowed}, not {method}"
    else:
        hint = "GET /openapi.json lists those there are"
        if f"/v1{path}" in known:
            hint = f"try /v1{path} (the base URL of an OpenAI client ends in /v1)"
        elif path.removeprefix("/v1") in known:
            hint = f"try {path.removeprefix('/v1')}"
        message = f"there is no route {path[:_PATH_SHOWN]}: {hint}"
    return Problem(error.status_code, message, None, None, dict(error.headers or {}))


def any_problem(error: Exception) -> Problem:
    """The answer to a client for any exception."""
    match error:
        case StepwellError():
            return problem_of(error)
        case HTTPException():
            return Problem(error.status_code, str(error.detail), None, None, dict(error.headers or {}))
        case _:
            return Problem(500, "an error inside the server: see its log", None, "internal_error")
