"""The server's own description of itself: `GET /openapi.json`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from stepwell.server.http.streams import direct_send_noted
from stepwell.server.read.names import ServedNames
from stepwell.server.read.schema import ChatCall, Named, Translated

_PLACE = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _PLACE.format(model="Error")}}},
    }
    for status, description in (("4XX", "The call is at fault."), ("5XX", "The server is."))
}


class Api(FastAPI):
    """An application whose bodies are read by hand and therefore described by hand."""

    def __init__(self, names: ServedNames) -> None:
        """`names` are those of the model that calls may give."""
        super().__init__(title="Stepwell", docs_url=None, redoc_url=None)
        self._names = names
        self._schemas: dict[str, Any] = {"Error": _ERROR}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with direct_send_noted(scope, send):
            await super().__call__(scope, receive, send)

    def body(self, call: type[Named]) -> dict[str, Any]:
        """What a route says of the body that it reads."""
        described = call.model_json_schema(ref_template=_PLACE)
        if issubclass(call, Translated):
            chat = ChatCall.model_json_schema(ref_template=_PLACE)["properties"]
            described["properties"] |= {name: chat[name] for name in sorted(call.passed_on())}
        self._schemas |= described.pop("$defs", {})
        if "model" in described["properties"] and not self._names.any_name:
            described["properties"]["model"] = {"enum": [*self._names.all, None]}
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": described}}}}

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document.setdefault("components", {}).setdefault("schemas", {}).update(self._schemas)
        return document
