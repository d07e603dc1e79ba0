"""The routes of the OpenAI API and of the server's own."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import RequestError, StepwellError
from stepwell.base.geometry import Ints
from stepwell.engine.config import EngineFacts
from stepwell.engine.tokenizer import Tokenizer
from stepwell.server import schema
from stepwell.server.body import read_json
from stepwell.server.client import EngineClient
from stepwell.server.errors import ApiError, GenerationFailed, Problem, problem_of
from stepwell.server.formats import DONE, Finished, Shape, error_event
from stepwell.server.generate import Generation, Job, sampling
from stepwell.server.metrics import Metrics
from stepwell.server.prompts import PromptReader
from stepwell.server.streams import EventStream, while_connected

log = logging.getLogger("stepwell.server")

_SESSION_HEADERS = ("x-session-id", "x-session-affinity")
_FIELD_NAMES_LOGGED = 200
_MAX_STOP_IDS = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes on: bytes of a body, and sequences that wait to be admitted."""

    body_bytes: int = 8_000_000
    queue: int = 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a server is made of."""

    client: EngineClient
    tokenizer: Tokenizer
    facts: EngineFacts
    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=WallClock)


def create_app(parts: Parts) -> FastAPI:
    """An ASGI application. Every answer that is an error has OpenAI's shape."""
    app = FastAPI(title="Stepwell", docs_url=None, redoc_url=None)
    routes = Routes(parts)
    for path, call, handler in (
        ("/v1/completions", schema.CompletionCall, routes.completions),
        ("/v1/chat/completions", schema.ChatCall, routes.chat_completions),
        ("/tokenize", schema.TokenizeCall, routes.tokenize),
        ("/detokenize", schema.DetokenizeCall, routes.detokenize),
    ):
        body = {"content": {"application/json": {"schema": call.model_json_schema()}}}
        app.add_api_route(path, handler, methods=["POST"], openapi_extra={"requestBody": body})
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", routes.model, methods=["GET"])
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])

    async def answer(request: Request, error: Exception) -> Response:
        problem = _problem(error)
        parts.metrics.refused(problem.status)
        return problem.response()

    for kind in (StepwellError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    return app


class Routes:
    """One method a route."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._prompts = PromptReader(parts.tokenizer, parts.facts)
        self._created = int(time.time())
        self._names_logged: set[str] = set()

    async def completions(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = self._read(schema.CompletionCall, await read_json(request, self._parts.limits.body_bytes))
        prompts = await self._prompts.completion(call.prompt)
        return await self._generate(request, call, prompts, arrived)

    async def chat_completions(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = self._read(schema.ChatCall, await read_json(request, self._parts.limits.body_bytes))
        prompt = await self._prompts.chat(call)
        return await self._generate(request, call, [prompt], arrived)

    async def tokenize(self, request: Request) -> Response:
        call = self._read(schema.TokenizeCall, await read_json(request, self._parts.limits.body_bytes))
        if (call.prompt is None) == (call.messages is None):
            raise RequestError("give either prompt or messages", "prompt")
        ids = await self._prompts.tokenize(call)
        return _json({"tokens": ids.tolist(), "count": len(ids), "max_model_len": self._parts.facts.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        call = self._read(schema.DetokenizeCall, await read_json(request, self._parts.limits.body_bytes))
        ids = self._prompts.ids(call.tokens, "tokens")
        return _json({"prompt": self._parts.tokenizer.decode(ids.tolist())})

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, name: str) -> Response:
        self._check_model(name)
        return _json(self._model())

    async def health(self, request: Request) -> Response:
        dead = self._parts.client.dead
        if dead is not None:
            return Problem(503, f"the engine has stopped: {dead}", None, "engine_dead").response()
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)

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
            problem = _problem(error)
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
            salt=call.cache_salt or "",
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
            message = f"{self._parts.client.waiting} sequences wait already, of at most {limit}: try again later"
            raise ApiError(Problem(429, message, None, "queue_full", {"retry-after": "1"}))

    def _read(self, kind: type[schema.Call], body: dict[str, Any]) -> schema.Call:
        call, unknown = schema.parse(kind, body)
        self._check_model(call.model)
        for name in unknown:
            if name not in self._names_logged and len(self._names_logged) < _FIELD_NAMES_LOGGED:
                self._names_logged.add(name)
                log.warning("unknown request field %.60r is ignored", name)
        return call

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._parts.facts.model:
            known = self._parts.facts.model
            raise ApiError(
                Problem(404, f"there is no model {name[:200]!r} here, only {known!r}", "model", "model_not_found")
            )

    def _model(self) -> dict[str, Any]:
        facts = self._parts.facts
        return {
            "id": facts.model,
            "object": "model",
            "created": self._created,
            "owned_by": "stepwell",
            "max_model_len": facts.max_model_len,
        }


def _session(request: Request, named: str | None) -> str | None:
    """The session a call belongs to, from its body or from a header."""
    for name in _SESSION_HEADERS:
        named = named or request.headers.get(name)
    if named is not None and len(named) > schema.MAX_NAME:
        raise RequestError(f"the session id is longer than {schema.MAX_NAME} characters", "session_id")
    return named or None


def _problem(error: Exception) -> Problem:
    match error:
        case StepwellError():
            return problem_of(error)
        case HTTPException():
            return Problem(error.status_code, str(error.detail), None, None, dict(error.headers or {}))
        case _:
            return Problem(500, "an error inside the server: see its log", None, "internal_error")


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
