"""What callers say about the future: POST /cache/pin, /cache/unpin and /cache/prefetch.

Hints about what a caller's own salt holds. They move what is kept and where, never an answer, and nobody else's.
"""

from __future__ import annotations

import time

import orjson
from fastapi import Request, Response

from stepwell.base.errors import RequestError
from stepwell.sched.retention import Subject
from stepwell.server.http.gate import caller_of
from stepwell.server.http.parts import Parts
from stepwell.server.prompt.prompts import PromptReader
from stepwell.server.read.hint_schema import AboutCall, PinCall
from stepwell.server.read.reading import CallReader
from stepwell.server.read.schema import ChatCall
from stepwell.server.read.tools import read_use


class HintRoutes:
    """One method a route."""

    def __init__(self, parts: Parts, calls: CallReader, prompts: PromptReader) -> None:
        self._parts = parts
        self._calls = calls
        self._prompts = prompts

    async def pin(self, request: Request) -> Response:
        """Pin what is cached of a prompt for a time: it is evicted last."""
        call = await self._calls.read(PinCall, request)
        subject = await self._subject(request, call)
        kept = await self._parts.client.pin(subject, call.ttl_s)
        return _json({"pinned_tokens": kept, "until": int(time.time() + call.ttl_s) if kept else None})

    async def unpin(self, request: Request) -> Response:
        """End such a pin."""
        call = await self._calls.read(AboutCall, request)
        return _json({"unpinned_tokens": await self._parts.client.unpin(await self._subject(request, call))})

    async def prefetch(self, request: Request) -> Response:
        """Load a cached prompt to the device. Answers once it is there."""
        call = await self._calls.read(AboutCall, request)
        done = await self._parts.client.prefetch(await self._subject(request, call))
        tiers = {"device": done.device, "host": done.host, "disk": done.disk}
        return _json({"status": done.status.value, "tokens": done.tokens, **tiers})

    async def _subject(self, request: Request, about: AboutCall) -> Subject:
        """What a call is about. Raises RequestError."""
        about.check()
        salt, call = caller_of(request).salted(about.cache_salt), about.call()
        call.came_in(about.size)
        if isinstance(call, ChatCall):
            return Subject(salt, (await self._prompts.chat(call, read_use(call).shown)).ids)
        prompts = await self._prompts.completion(call.prompt)
        if len(prompts) != 1:
            raise RequestError(f"prompt holds {len(prompts)} prompts: send one at a time", "prompt")
        return Subject(salt, prompts[0].ids)


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
