"""The routes of the Responses API."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

import orjson
from fastapi import Request, Response

from stepwell.base.errors import RequestError
from stepwell.server.http.errors import ApiError, Problem, renamed
from stepwell.server.http.gate import caller_of
from stepwell.server.http.parts import Parts
from stepwell.server.read.hosted import LeftOut
from stepwell.server.read.reading import CallReader
from stepwell.server.read.schema import MAX_NAME
from stepwell.server.responses.chat import NAMES, chat_fields
from stepwell.server.responses.events import Place, ResponsesForm
from stepwell.server.responses.kept import KeptResponses, Stored
from stepwell.server.responses.schema import ResponsesCall
from stepwell.server.responses.tools import declarations
from stepwell.server.routes.calls import GenerationRoutes
from stepwell.talk.items import chat_messages

_GONE = "it was not stored, was deleted, or has made room for others (--response-store)"


class ResponsesRoutes:
    """One method a route."""

    def __init__(self, parts: Parts, calls: CallReader, generation: GenerationRoutes) -> None:
        self._parts = parts
        self._calls = calls
        self._generation = generation
        self._kept = KeptResponses(parts.limits.response_bytes)
        self._left_out = LeftOut()

    async def create(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = await self._calls.read(ResponsesCall, request)
        owner = caller_of(request).owner
        earlier = self._earlier(owner, call.previous_response_id)
        added = chat_messages(call.input)
        messages = [] if earlier is None else earlier.messages
        try:
            declared = declarations(call.tools or [], self._left_out)
            chat = call.chat(chat_fields(call, messages, added, declared))
            wish = await self._generation.chat(chat, arrived, owner)
        except RequestError as error:
            raise renamed(error, NAMES) from error
        name = f"resp_{secrets.token_hex(12)}"
        turns = () if earlier is None else earlier.turns
        echo = self._echo(call)
        place = None if call.store is False else Place(self._kept, owner, turns, tuple(added))
        session = call.prompt_cache_key[:MAX_NAME] if call.prompt_cache_key else None
        wish = replace(wish, session=session)
        return await self._generation.answer(request, wish, name, ResponsesForm(name, echo, place, declared))

    async def find(self, request: Request, response_id: str) -> Response:
        stored = self._kept.find(caller_of(request).owner, response_id)
        if stored is None:
            raise _missing(response_id, None, "response_not_found", "make it again")
        return Response(stored.body, media_type="application/json")

    async def delete(self, request: Request, response_id: str) -> Response:
        if not self._kept.drop(caller_of(request).owner, response_id):
            raise _missing(response_id, None, "response_not_found", "there is nothing to delete")
        body = {"id": response_id, "object": "response", "deleted": True}
        return Response(orjson.dumps(body), media_type="application/json")

    def _earlier(self, owner: str, name: str | None) -> Stored | None:
        found = None if name is None else self._kept.find(owner, name)
        if name is not None and found is None:
            field = "previous_response_id"
            raise _missing(name, field, "previous_response_not_found", "send the whole conversation as input instead")
        return found

    def _echo(self, call: ResponsesCall) -> dict[str, Any]:
        """What a response repeats of its call."""
        effort, summary = (None, None) if call.reasoning is None else (call.reasoning.effort, call.reasoning.summary)
        form, defaults = None if call.text is None else call.text.format, self._parts.defaults
        echo = {
            "created_at": int(time.time()),
            "model": self._parts.facts.model,
            "background": False,
            "instructions": call.instructions,
            "max_output_tokens": call.max_output_tokens,
            "metadata": call.metadata or {},
            "parallel_tool_calls": call.parallel_tool_calls is not False,
            "previous_response_id": call.previous_response_id,
            "reasoning": {"effort": effort, "summary": summary},
            "store": call.store is not False,
            "temperature": defaults.temperature if call.temperature is None else call.temperature,
            "text": {"format": {"type": "text"} if form is None else form.given()},
            "tool_choice": "auto" if call.tool_choice is None else call.tool_choice,
            "tools": call.tools or [],
            "top_p": defaults.top_p if call.top_p is None else call.top_p,
            "truncation": call.truncation or "disabled",
        }
        try:
            orjson.dumps(echo)
        except TypeError as error:  # found now, not when the answer is there
            raise RequestError(
                "tools or text.format.schema are nested too deeply to be repeated: flatten them", "tools"
            ) from error
        return echo


def _missing(name: str, field: str | None, code: str, advice: str) -> ApiError:
    return ApiError(Problem(404, f"there is no response {name[:80]!r} here: {_GONE}: {advice}", field, code))
