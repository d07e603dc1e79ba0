"""What a server answers while its engine is being built."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stepwell.base.clock import Clock
from stepwell.server.http.errors import Problem
from stepwell.server.http.gate import Answer, cors, request_id_of

_PAGES = ("/", "/dashboard")
_AGAIN_S = 5
_AGAIN_LATER = 1013
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta name="viewport" content="width=device-width"><title>Stepwell is starting</title>
<style>:root{{color-scheme:light dark}}body{{font:1.1rem/1.5 system-ui;max-width:34rem;margin:20vh auto;padding:0 1rem}}</style></head>
<body><h1>Stepwell is starting</h1><p role="status">{told}</p><p>This page comes again every two seconds.</p></body></html>"""


class Front:
    """The application that answers at present: first that of the start, then that of the engine."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...] = ()) -> None:
        """`origins`: web pages that may read what `app` answers. An application that follows sees to that itself."""
        self.app = CORSMiddleware(app, **cors(origins)) if origins else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Starting:
    """Answers every call with 503 and what the start has come to; a browser gets a page that looks again by itself."""

    def __init__(self, clock: Clock, phase: Callable[[], str]) -> None:
        self._clock = clock
        self._began = clock.now()
        self._phase = phase

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a handshake, which nothing here would answer later either
            await send({"type": "websocket.close", "code": _AGAIN_LATER})
            return
        send = Answer(send, request_id_of(Headers(scope=scope))).send
        told = f"{self._phase() or 'starting the engine'} ({self._clock.now() - self._began:.0f} s so far)"
        if scope["path"] in _PAGES and "text/html" in Headers(scope=scope).get("accept", ""):
            page = HTMLResponse(_PAGE.format(told=escape(told)), 503, {"retry-after": str(_AGAIN_S)})
            await page(scope, receive, send)
            return
        message = f"the server is starting: {told}; try again later"
        problem = Problem(503, message, None, "starting", {"retry-after": str(_AGAIN_S)})
        await problem.response(scope["path"])(scope, receive, send)
