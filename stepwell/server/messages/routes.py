"""The routes of the Messages API."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import orjson
from fastapi import Request, Response

from stepwell.base.errors import RequestError
from stepwell.server.http.errors import renamed
from stepwell.server.http.gate import caller_of
from stepwell.server.http.parts import Parts
from stepwell.server.messages.chat import chat_fields
from stepwell.server.messages.events import MessagesForm
from stepwell.server.messages.marks import check_marks
from stepwell.server.messages.schema import CountCall, MessagesCall
from stepwell.server.prompt.prompts import PromptReader
from stepwell.server.read.hosted import LeftOut
from stepwell.server.read.reading import CallReader
from stepwell.server.read.schema import MAX_NAME, TokenizeCall, parse
from stepwell.server.routes.calls import GenerationRoutes, Wish

_NAMES = {"response_format": "output_config.format"}
_COUNTED = ("messages", "tools", "chat_template_kwargs", "reasoning_effort", "continue_final_message")


class MessagesRoutes:
    """One method a route."""

    def __init__(self, parts: Parts, calls: CallReader, generation: GenerationRoutes, prompts: PromptReader) -> None:
        self._parts = parts
        self._calls = calls
        self._generation = generation
        self._prompts = prompts
        self._left_out = LeftOut()

    async def create(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = await self._calls.read(MessagesCall, request)
        try:
            chat = call.chat(chat_fields(call, self._left_out))
            wish = await self._generation.chat(chat, arrived, caller_of(request).owner)
        except RequestError as error:
            raise renamed(error, _NAMES) from error
        check_marks(call)
        name = f"msg_{secrets.token_hex(12)}"
        form = MessagesForm(name, self._parts.facts.model)
        return await self._generation.answer(request, _as_messages(wish, call), name, form)

    async def count_tokens(self, request: Request) -> Response:
        call = await self._calls.read(CountCall, request)
        fields = chat_fields(call, self._left_out)
        counted: dict[str, Any] = {name: fields[name] for name in _COUNTED if name in fields}
        chat, _ = parse(TokenizeCall, counted)
        chat.came_in(call.size)
        ids = await self._prompts.tokenize(chat)
        return Response(orjson.dumps({"input_tokens": len(ids)}), media_type="application/json")


def _as_messages(wish: Wish, call: MessagesCall) -> Wish:
    """What this API adds to a chat: names of calls in its own style, an answer of no tokens, hints."""
    user = None if call.metadata is None else call.metadata.user_id
    reading = replace(wish.reading, new_id=lambda: f"toolu_{secrets.token_hex(12)}")
    params = replace(wish.params, max_tokens=0, min_tokens=0) if call.max_tokens == 0 else wish.params
    session = user[:MAX_NAME] if user else None
    return replace(wish, reading=reading, params=params, session=session)
