"""From a request's bytes to a checked call."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import Request

from stepwell.server.http.errors import ApiError, Problem
from stepwell.server.read import schema
from stepwell.server.read.body import Body, read_json
from stepwell.server.read.names import ServedNames

log = logging.getLogger("stepwell.server")

_FIELD_NAMES_LOGGED = 200


class CallReader:
    """Reads calls; names each unknown field once in the log."""

    def __init__(self, names: ServedNames, body_bytes: int, body_seconds: float) -> None:
        self._names = names
        self._body_bytes = body_bytes
        self._body_seconds = body_seconds
        self._names_logged: set[str] = set()

    async def read(self, kind: type[schema.Call], request: Request) -> schema.Call:
        """The call in a request's body. Raises ApiError or RequestError."""
        return self.parse(kind, await read_json(request, self._body_bytes, self._body_seconds))

    def parse(self, kind: type[schema.Call], body: dict[str, Any]) -> schema.Call:
        call, unknown = schema.parse(kind, body)
        if isinstance(body, Body):
            call.came_in(body.size)
        self.check_model(call.model)
        for name in unknown:
            if name not in self._names_logged and len(self._names_logged) < _FIELD_NAMES_LOGGED:
                self._names_logged.add(name)
                log.warning("unknown request field %.60r is ignored", name)
        return call

    def check_model(self, name: str | None) -> None:
        if name is not None and not self._names.accept(name):
            known = ", ".join(map(repr, self._names.all))
            told = (
                f"there is no model {name[:200]!r} here, only {known}; --served-model-name NAME '*' would take any name"
            )
            raise ApiError(Problem(404, told, "model", "model_not_found"))
