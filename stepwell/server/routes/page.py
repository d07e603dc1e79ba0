"""The server's page: `/` and `/dashboard` with what they load. Static files without outside parts; what they show they ask of the API."""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

FILES = {
    **dict.fromkeys(("page.css", "uplot.css"), "text/css; charset=utf-8"),
    **dict.fromkeys(
        (
            "page.js",
            "base.js",
            "chat.js",
            "tree.js",
            "markdown.js",
            "clients.js",
            "dashboard.js",
            "charts.js",
            "uplot.js",
        ),
        "text/javascript; charset=utf-8",
    ),
    "clients.json": "application/json",
    "uplot.LICENSE": "text/plain; charset=utf-8",
}
"""What the page loads, with its type."""

PAGE_PATHS = frozenset({"/", "/dashboard", *(f"/page/{name}" for name in FILES)})
"""Paths of the page. It holds nothing of any caller's, and asks for the key itself."""

_HEADERS = {"cache-control": "no-cache", "x-content-type-options": "nosniff", "vary": "accept"}
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def wants_page(request: Request) -> bool:
    """Whether a browser asks, which names HTML among what it takes; probes and programs do not."""
    return "text/html" in request.headers.get("accept", "")


class PageRoutes:
    """One method a route. All files are read once, when the server starts."""

    def __init__(self) -> None:
        folder = resources.files("stepwell.server").joinpath("pages")
        self._page = folder.joinpath("index.html").read_bytes()
        self._files = {name: folder.joinpath(name).read_bytes() for name in FILES}

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/dashboard", self.page, methods=["GET"], include_in_schema=False)
        app.add_api_route("/page/{name}", self.file, methods=["GET"], include_in_schema=False)

    async def page(self, request: Request) -> Response:
        headers = {**_HEADERS, "content-security-policy": _POLICY}
        return Response(self._page, 200, headers, "text/html; charset=utf-8")

    async def file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        return Response(self._files[name], 200, _HEADERS, FILES[name])
