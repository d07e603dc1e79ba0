"""The routes that generate: a call is read, checked, run, and answered whole or in a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator

from fastapi import Request, Response

from stepwell.base.errors import RequestError, StepwellError
from stepwell.base.geometry import Ints
from stepwell.server import schema
from stepwell.server.errors import ApiError, GenerationFailed, Problem, any_problem
from stepwell.server.formats import DONE, Finished, Shape, error_event
from stepwell.server.gate import caller_of
from stepwell.server.generate import Generation, Job, sampling
from stepwell.server.parts import Parts
from stepwell.server.prompts import PromptReader
from stepwell.server.reading import CallReader
from stepwell.server.streams import EventStream, while_connected

_SESSION_HEADERS = ("x-session-id", "x-session-affinity")
_MAX_STOP_IDS = 256


class GenerationRoutes:
    """One method a route."""

    def __init__(self, parts: Parts, calls: CallReader) -> None:
        self._parts = parts
        self._calls = calls
        self._prompts = PromptReader(parts.tokenizer, parts.facts)

    async def completions(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = await self._calls.read(schema.CompletionCall, request)
        prompts = await self._prompts.completion(call.prompt)
        return await self._generate(request, call, prompts, arrived)

    async def chat_completions(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = await self._calls.read(schema.ChatCall, request)
        prompt = await self._prompts.chat(call)
        return await self._generate(request, call, [prompt], arrived)

    async def _generate(
        self, request: Request, call: schema.CompletionCall | schema.ChatCall, prompts: list[Ints], arrived: float
    ) -> Response:
        chat = isinstance(call, schema.ChatCall)
        job = self._job(request, call, prompts, arrived)
        self._check_room(job)
        shape = Shape(job.id, self._parts.facts.model, int(time.time()), chat)
        generation = Generation(job, self._parts.client, self._parts.tokenizer, self._parts.metrics, self._parts.clock)
        try:
            await while_connected(request.receive, generation.accepted())
            if not call.stream:
                return await while_connected(request.receive, self._whole(generation, shape))
        except BaseException as error:
            generation.close("error" if isinstance(error, GenerationFailed) else "abort")
            raise
        options = call.stream_options
        events = self._events(generation, shape, options is not None and options.include_usage)
        return EventStream(events, generation.close, {"x-request-id": job.id})

    async def _whole(self, generation: Generation, shape: Shape) -> Response:
        texts: list[list[str]] = [[] for _ in generation.choices]
        async for pieces in generation.pieces():
            for piece in pieces:
                texts[piece.choice.index].append(piece.text)
        finished = [
            Finished("".join(parts), choice.reason or "stop")
            for parts, choice in zip(texts, generation.choices, strict=True)
        ]
        headers = {"x-request-id": shape.id}
        if (outcome := generation.choices[0].outcome) is not None:
            headers["x-stepwell-resume"] = outcome.explain()
        return Response(shape.whole(finished, generation.usage()), 200, headers, "application/json")

    async def _events(self, generation: Generation, shape: Shape, with_usage: bool) -> AsyncIterator[bytes]:
        chunks = shape.chunks(with_usage)
        try:
            async for pieces in generation.pieces():
                for piece in pieces:
                    if piece.first and (opening := chunks.opening(piece.choice.index)):
                        yield opening
                    if piece.text or piece.reason is not None:
                        yield chunks.text(piece.choice.index, piece.text, piece.reason)
            if with_usage:
                yield chunks.usage(generation.usage())
        except StepwellError as error:
            problem = any_problem(error)
            self._parts.metrics.refused(problem.status)
            generation.close("error")
            yield error_event(problem.body)
        yield DONE

    def _job(
        self, request: Request, call: schema.CompletionCall | schema.ChatCall, prompts: list[Ints], arrived: float
    ) -> Job:
        if call.stream_options is not None and not call.stream:
            raise RequestError("stream_options needs stream: true", "stream_options")
        stop_ids = self._prompts.ids(call.stop_token_ids or [], "stop_token_ids").tolist()
        if len(stop_ids) > _MAX_STOP_IDS:
            raise RequestError(f"stop_token_ids holds more than {_MAX_STOP_IDS} ids", "stop_token_ids")
        prefix = "chatcmpl" if isinstance(call, schema.ChatCall) else "cmpl"
        return Job(
            id=f"{prefix}-{secrets.token_hex(12)}",
            prompts=tuple(prompts),
            n=call.n or 1,
            params=sampling(call, secrets.randbits(63), stop_ids),
            context=self._parts.facts.max_model_len,
            stops=schema.read_stops(call.stop),
            salt=caller_of(request).salted(call.cache_salt),
            session=_session(request, call.session_id),
            read_cache=call.read_cache,
            write_cache=call.write_cache,
            arrived=arrived,
        )

    def _check_room(self, job: Job) -> None:
        """Refuse what would make the queue too long."""
        limit = self._parts.limits.queue
        if job.sequences > limit:
            raise RequestError(
                f"this call asks for {job.sequences} sequences: at most {limit} are queued (--max-queue)", "n"
            )
        if self._parts.client.waiting + job.sequences > limit:
            after = self._parts.client.retry_after()
            message = f"{self._parts.client.waiting} sequences wait already, of at most {limit}: try again later"
            raise ApiError(Problem(429, message, None, "queue_full", {"retry-after": str(after)}))


def _session(request: Request, named: str | None) -> str | None:
    """The session a call belongs to, from its body or from a header."""
    for name in _SESSION_HEADERS:
        named = named or request.headers.get(name)
    if named is not None and len(named) > schema.MAX_NAME:
        raise RequestError(f"the session id is longer than {schema.MAX_NAME} characters", "session_id")
    return named or None
