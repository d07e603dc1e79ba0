"""The routes of the OpenAI API and of the server's own."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from stepwell.base.errors import RequestError, StepwellError
from stepwell.server.batches.routes import BatchRoutes
from stepwell.server.http.document import ERRORS, Api
from stepwell.server.http.errors import any_problem, problem_of, shutting_down, unrouted
from stepwell.server.http.gate import Gate, cors
from stepwell.server.http.parts import Parts
from stepwell.server.messages.routes import MessagesRoutes
from stepwell.server.messages.schema import CountCall, MessagesCall
from stepwell.server.prompt.beside import Beside
from stepwell.server.prompt.prompts import PromptReader
from stepwell.server.prompt.render import Renderer
from stepwell.server.prompt.templates import InPlace
from stepwell.server.read import schema
from stepwell.server.read.hint_schema import AboutCall, PinCall
from stepwell.server.read.reading import CallReader
from stepwell.server.responses.routes import ResponsesRoutes
from stepwell.server.responses.schema import ResponsesCall
from stepwell.server.routes.cache import CacheRoutes
from stepwell.server.routes.calls import GenerationRoutes
from stepwell.server.routes.dashboard import DashboardRoutes
from stepwell.server.routes.hints import HintRoutes
from stepwell.server.routes.page import PageRoutes
from stepwell.server.routes.peers import PeerRoutes


def create_app(parts: Parts) -> FastAPI:
    """An ASGI application. Every answer that is an error has the shape of its route's API."""
    app = Api(parts.served)
    calls = CallReader(parts.served, parts.limits.body_bytes, parts.limits.body_seconds)
    beside = Beside()
    templates = parts.templates or InPlace(parts.tokenizer.chat, beside)
    prompts = PromptReader(
        parts.tokenizer, parts.facts, Renderer.of(parts.tokenizer, parts.template), templates, beside
    )
    routes = Routes(parts, calls, prompts)
    generation = GenerationRoutes(parts, calls, prompts)
    messages = MessagesRoutes(parts, calls, generation, prompts)
    responses = ResponsesRoutes(parts, calls, generation)
    cache = CacheRoutes(parts, calls, prompts)
    hints = HintRoutes(parts, calls, prompts)
    dashboard = DashboardRoutes(parts)
    for path, call, handler in (
        ("/v1/completions", schema.CompletionCall, generation.completions),
        ("/v1/chat/completions", schema.ChatCall, generation.chat_completions),
        ("/v1/responses", ResponsesCall, responses.create),
        ("/v1/messages", MessagesCall, messages.create),
        ("/v1/messages/count_tokens", CountCall, messages.count_tokens),
        ("/tokenize", schema.TokenizeCall, routes.tokenize),
        ("/detokenize", schema.DetokenizeCall, routes.detokenize),
        ("/cache/explain", schema.ChatCall, cache.explain),
        ("/cache/pin", PinCall, hints.pin),
        ("/cache/unpin", AboutCall, hints.unpin),
        ("/cache/prefetch", AboutCall, hints.prefetch),
    ):
        app.add_api_route(path, handler, methods=["POST"], openapi_extra=app.body(call), responses=ERRORS)
    app.add_api_route("/v1/responses/{response_id}", responses.find, methods=["GET"], responses=ERRORS)
    app.add_api_route("/v1/responses/{response_id}", responses.delete, methods=["DELETE"], responses=ERRORS)
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", routes.model, methods=["GET"])
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/ready", routes.ready, methods=["GET"])
    app.add_api_route("/health", routes.health, methods=["HEAD"], include_in_schema=False)  # as balancers ask
    app.add_api_route("/ready", routes.ready, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_api_route("/cache/reset", cache.reset, methods=["POST"])
    app.add_api_route("/dashboard/events", dashboard.events, methods=["GET"], include_in_schema=False)
    page = PageRoutes()
    page.add_to(app)
    PeerRoutes(parts, cache, page).add_to(app)
    bulk = {
        "/v1/chat/completions": generation.chat_completions,
        "/v1/completions": generation.completions,
        "/v1/responses": responses.create,
        "/v1/messages": messages.create,
    }
    BatchRoutes(parts, calls, bulk).add_to(app)
    _guard(app, parts)
    return app


def _guard(app: FastAPI, parts: Parts) -> None:
    """What every call passes on its way in, and what its errors pass on their way out."""
    known = {route.path for route in app.routes if isinstance(route, Route)}

    async def answer(request: Request, error: Exception) -> Response:
        problem = any_problem(error)
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            problem = unrouted(error, request.method, request.url.path, known)
        parts.metrics.refused(problem.status)
        return problem.response(request.url.path)

    for kind in (StepwellError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    app.add_middleware(Gate, parts.keys, parts.door, parts.metrics, parts.clock)
    if parts.otlp is not None:
        from stepwell.server.observe.otlp import Tracing

        app.add_middleware(Tracing, parts.otlp, parts.facts.model)
    if parts.origins:  # outside the gate: a refusal, too, must be readable to the page that called
        app.add_middleware(CORSMiddleware, **cors(parts.origins))


class Routes:
    """One method a route."""

    def __init__(self, parts: Parts, calls: CallReader, prompts: PromptReader) -> None:
        self._parts = parts
        self._prompts = prompts
        self._calls = calls
        self._created = int(time.time())

    async def tokenize(self, request: Request) -> Response:
        call = await self._calls.read(schema.TokenizeCall, request)
        if (call.prompt is None) == (call.messages is None):
            raise RequestError("give either prompt or messages", "prompt")
        ids = await self._prompts.tokenize(call)
        return _json({"tokens": ids.tolist(), "count": len(ids), "max_model_len": self._parts.facts.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        call = await self._calls.read(schema.DetokenizeCall, request)
        ids = self._prompts.ids(call.tokens, "tokens")
        return _json(
            {"prompt": await self._prompts.beside.run(len(ids), lambda: self._parts.tokenizer.decode(ids.tolist()))}
        )

    async def models(self, request: Request) -> Response:
        """In one body what the clients of three APIs look for; Codex wants `models`, entries of which are its own settings."""
        names = self._parts.served.all
        told = {"object": "list", "data": [self._model(name) for name in names], "models": []}
        return _json(told | {"has_more": False, "first_id": names[0], "last_id": names[-1]})

    async def model(self, name: str) -> Response:
        self._calls.check_model(name)
        return _json(self._model(name))

    async def health(self, request: Request) -> Response:
        trouble = self._parts.client.trouble
        if trouble is not None:
            return problem_of(trouble).response()
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        if self._parts.client.trouble is None and not self._parts.door.open:
            return shutting_down().response()
        return await self.health(request)

    async def metrics(self, request: Request) -> Response:
        return Response(self._parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    def _model(self, name: str) -> dict[str, Any]:
        facts = self._parts.facts
        return {
            "id": name,
            "root": facts.model,
            "object": "model",
            "created": self._created,
            "owned_by": "stepwell",
            "max_model_len": facts.max_model_len,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._created, UTC).isoformat(),
            "max_input_tokens": facts.max_model_len,
            "lifecycle": "active",
        }


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
