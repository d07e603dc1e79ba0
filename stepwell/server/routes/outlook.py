"""A call that is not made: how soon its prompts would have their first token here. What a router asks before it chooses a server.

Any call that generates, with the header `x-stepwell-outlook`. It passes the same gate and the same checks as the call itself, so that its
prompt is the one that would be computed, under the salt of the same key.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import Request, Response

from stepwell.sched.outlook import Outlook
from stepwell.server.generation.client import EngineClient
from stepwell.server.generation.generate import CheckedCall

HEADER = "x-stepwell-outlook"
WITH_TOKENS = "tokens"
"""The header's value that asks for the token ids of the prompts too, so that other servers can be asked without reading them again."""


def asks_for_outlook(request: Request) -> bool:
    """Whether the call is not to be made."""
    return HEADER in request.headers


async def outlooks(request: Request, job: CheckedCall, client: EngineClient) -> Response:
    """One outlook for each prompt of `job`. Costs the engine a plan for each. Raises EngineDead."""
    prompts = [prompt.ids for prompt in job.prompts]
    told = await asyncio.gather(*(client.outlook(job.salt, ids, job.read_cache) for ids in prompts))
    body: dict[str, Any] = {"outlooks": [shown(outlook) for outlook in told]}
    if request.headers[HEADER] == WITH_TOKENS:
        body["prompt_token_ids"] = [ids.tolist() for ids in prompts]
    return Response(orjson.dumps(body), media_type="application/json")


def shown(outlook: Outlook) -> dict[str, Any]:
    """As JSON, with unrounded seconds, so that routers compare the same numbers."""
    return {
        "tokens": outlook.tokens,
        "boundary": outlook.boundary,
        "tier": outlook.tier.name.lower(),
        "load_s": outlook.load_s,
        "prefill_s": outlook.prefill_s,
        "queue_s": outlook.queue_s,
        "requests": outlook.requests,
        "first_token_s": outlook.first_token_s,
    }
