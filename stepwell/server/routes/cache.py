"""What callers may ask of the cache, and do to it: POST /cache/explain and POST /cache/reset."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import Request, Response

from stepwell.base.errors import RequestError
from stepwell.cache.reuse.explain import Explanation
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.server.http.errors import ApiError, Problem
from stepwell.server.http.gate import caller_of
from stepwell.server.http.parts import Parts
from stepwell.server.prompt.prompts import Prompt, PromptReader
from stepwell.server.read import schema
from stepwell.server.read.body import read_json
from stepwell.server.read.reading import CallReader
from stepwell.server.read.tools import read_use


class CacheRoutes:
    """One method a route."""

    def __init__(self, parts: Parts, calls: CallReader, prompts: PromptReader) -> None:
        self._parts = parts
        self._calls = calls
        self._prompts = prompts

    async def explain(self, request: Request) -> Response:
        """The plan for each prompt of a call that is not made: the body is that of a completion or a chat."""
        call = self._call(await self._body(request))
        salt = caller_of(request).salted(call.cache_salt)
        ask = self._parts.client.explain
        prompts = await self._read(call)
        told = await asyncio.gather(*(ask(salt, prompt.ids, call.read_cache) for prompt in prompts))
        return Response(orjson.dumps({"prompts": [_shown(one) for one in told]}), media_type="application/json")

    async def reset(self, request: Request) -> Response:
        """Empty the cache, except for what is in use, under one salt or all. Callers with a salt of their own reach only that."""
        self._may_reset()
        named = (await self._body(request)).get("cache_salt")
        if named is not None and not isinstance(named, str):
            raise RequestError("cache_salt must be a string", "cache_salt")
        freed = await self.empty(request, named)
        return Response(orjson.dumps({"freed_pages": freed}), media_type="application/json")

    async def empty(self, request: Request, named: str | None) -> dict[str, int]:
        """Pages freed by tier, of the salt `named` or of all that the caller reaches. Raises ApiError where that is not allowed."""
        self._may_reset()
        caller = caller_of(request)
        return await self._parts.client.reset(caller.salted(named) if caller.salt else named)

    def _may_reset(self) -> None:
        if not self._parts.allow_reset:
            message = "callers may not empty the cache here: start the server with --allow-cache-reset"
            raise ApiError(Problem(403, message, None, "reset_not_allowed"))

    async def _body(self, request: Request) -> dict[str, Any]:
        return await read_json(request, self._parts.limits.body_bytes, self._parts.limits.body_seconds)

    def _call(self, body: dict[str, Any]) -> schema.CompletionCall | schema.ChatCall:
        if ("messages" in body) == ("prompt" in body):
            raise RequestError("give either prompt or messages, as in the call that is meant", "prompt")
        if "messages" in body:
            return self._calls.parse(schema.ChatCall, body)
        return self._calls.parse(schema.CompletionCall, body)

    async def _read(self, call: schema.CompletionCall | schema.ChatCall) -> list[Prompt]:
        if isinstance(call, schema.ChatCall):
            return [await self._prompts.chat(call, read_use(call).shown)]
        return await self._prompts.completion(call.prompt, call.add_special_tokens)


def _shown(told: Explanation) -> dict[str, Any]:
    return {
        "tokens": told.tokens,
        "known_tokens": told.matched,
        "kv_on_device": told.device,
        "kv_in_all_tiers": told.union,
        "hit": told.hit,
        "rungs": [{"at": position, "tier": tier} for position, tier in told.rungs],
        "lost_rungs": list(told.lost_rungs),
        "diverged_at": told.diverged_at,
        "starts": [
            {
                "boundary": start.boundary,
                "shared": start.shared,
                "state_from": start.state,
                "loads": [{"tier": tier, "start": first, "end": end} for tier, first, end in start.legs],
            }
            for start in told.starts
        ],
        "pages_needed": told.pages_needed,
        "pages_available": told.pages_available,
        "waits_for": told.waits_for,
        "outcome": None if told.outcome is None else _outcome(told.outcome),
    }


def _outcome(outcome: AdmissionOutcome) -> dict[str, Any]:
    return {
        "text": outcome.in_one_line(),
        "reason": outcome.reason.value,
        "boundary": outcome.boundary,
        "device": outcome.device,
        "host": outcome.host,
        "disk": outcome.disk,
        "recomputed": outcome.recomputed,
        "lost_to": {loss.value: tokens for loss, tokens in outcome.lost},
    }
