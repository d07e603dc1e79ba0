"""Routes that probes, balancers and scripts of vLLM and SGLang ask."""

from __future__ import annotations

from dataclasses import asdict
from importlib import metadata

import orjson
from fastapi import FastAPI, Request, Response

from stepwell.server.http.parts import Parts
from stepwell.server.routes.cache import CacheRoutes
from stepwell.server.routes.page import PageRoutes, wants_page

_NOT_SAMPLING = ("ends", "source")


class PeerRoutes:
    """One method a route."""

    def __init__(self, parts: Parts, cache: CacheRoutes, page: PageRoutes) -> None:
        self._parts = parts
        self._cache = cache
        self._page = page

    def add_to(self, app: FastAPI) -> None:
        """Add them all. `HEAD /` is what Claude Code asks before its first call."""
        app.add_api_route("/", self.root, methods=["GET"])
        app.add_api_route("/", self.root, methods=["HEAD"], include_in_schema=False)
        app.add_api_route("/version", self.version, methods=["GET"])
        for method in ("GET", "POST"):
            app.add_api_route("/ping", self.ping, methods=[method], include_in_schema=method == "GET")
            app.add_api_route("/flush_cache", self.flush_cache, methods=[method], include_in_schema=method == "POST")
        app.add_api_route("/load", self.load, methods=["GET"])
        app.add_api_route("/get_model_info", self.model_info, methods=["GET"])
        app.add_api_route("/model_info", self.model_info, methods=["GET"], include_in_schema=False)

    async def root(self, request: Request) -> Response:
        """The page for a browser, a few words for a program."""
        if wants_page(request):
            return await self._page.page(request)
        return _json({"server": "stepwell", "version": _version()})

    async def version(self, request: Request) -> Response:
        return _json({"version": _version()})

    async def ping(self, request: Request) -> Response:
        """200 while new calls are taken."""
        return Response(status_code=200 if self._parts.client.trouble is None and self._parts.door.open else 503)

    async def load(self, request: Request) -> Response:
        """Sequences that are served or wait."""
        return _json({"server_load": self._parts.client.open})

    async def model_info(self, request: Request) -> Response:
        facts, defaults = self._parts.facts, asdict(self._parts.defaults)
        return _json(
            {
                "model_path": facts.model,
                "tokenizer_path": facts.model,
                "is_generation": True,
                "max_model_len": facts.max_model_len,
                "preferred_sampling_params": {k: v for k, v in defaults.items() if k not in _NOT_SAMPLING},
            }
        )

    async def flush_cache(self, request: Request) -> Response:
        """Empty the cache, except for what is in use, under all salts of the caller."""
        return _json({"freed_pages": await self._cache.empty(request, None)})


def _version() -> str:
    return metadata.version("stepwell")


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
