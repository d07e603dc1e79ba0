"""Stepwell on Ray Serve: replicas that are each a `stepwell serve`, behind one OpenAI endpoint.

    serve run stepwell.serve_ray:build model=tiny/model replicas=4 flags="--device-memory 64MiB"

    client ─HTTP─▶ Door ─handle─▶ Nearest (asks, chooses) ─▶ Replica ─HTTP on localhost─▶ stepwell serve
                                     └── x-stepwell-outlook ──────────────────────────▶ stepwell serve of each

Ray starts, watches, restarts, drains and scales the replicas; `stepwell.fleet` chooses among them. This module needs `stepwell[ray]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import subprocess
import time
import urllib.request
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import httpx
import orjson
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from stepwell.base.children import command, environment
from stepwell.base.errors import ConfigError
from stepwell.cache.moves import Tier
from stepwell.fleet.router import Router, View
from stepwell.sched.outlook import Outlook

_RESPONSES = "/v1/responses"
_STORED = f"{_RESPONSES}/"
GENERATING = ("/v1/completions", "/v1/chat/completions", _RESPONSES, "/v1/messages")
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "accept-encoding"})
_OURS = frozenset({"x-stepwell-outlook"})
"""What the router sends itself, and no caller."""
_SESSION_HEADERS = ("x-session-id", "x-session-affinity")
_MOST_BODY = 64 << 20
_TRIES = 3
_HEAD_START = 1 / 3
"""Part of the time to answer after which others are asked as well, though the first has not answered."""
_MOST_STORED, _LONGEST_NAME = 100_000, 64
_HEAD = 4096
"""Bytes of a prompt that stand for its session where it names none."""


class Arguments(BaseModel):
    """What `serve run` is given.

    flags     of `stepwell serve`, as on its command line          gpus   of each replica
    ask_ms    how long a replica may take to say what it expects of a prompt
    max_replicas  Ray adds replicas up to so many as requests come; None: always `replicas`
    start_s, drain_s  seconds that a replica may take to start, and that its calls may go on once it is to end
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    replicas: int = Field(2, ge=1, le=1024)
    max_replicas: int | None = Field(None, ge=1, le=1024)
    flags: str = ""
    gpus: float = Field(0.0, ge=0)
    cpus: float = Field(1.0, ge=0)
    ask_ms: float = Field(100.0, gt=0, le=10_000)
    start_s: float = Field(600.0, gt=0)
    drain_s: float = Field(120.0, ge=0)


@dataclass(frozen=True, slots=True)
class Call:
    """An HTTP call on its way to a replica. `session` "": not known."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    session: str

    @property
    def generates(self) -> bool:
        return self.method == "POST" and self.path.partition("?")[0] in GENERATING


def session_of(headers: Mapping[str, str], body: bytes) -> str:
    """A digest of the session that a call names, in a header or in its body; else of how its prompt begins; "" where there is no prompt."""
    for name in _SESSION_HEADERS:
        if headers.get(name):
            return _digest(headers[name].encode())
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(told, dict):
        return ""
    metadata = told.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    for value in (told.get("session_id"), told.get("prompt_cache_key"), user, told.get("user")):
        if isinstance(value, str) and value:
            return _digest(value.encode(errors="surrogatepass"))
    said = told.get("messages", told.get("input", told.get("prompt")))
    begin = said[:2] if isinstance(said, list) and said and isinstance(said[0], dict) else said
    if not begin:
        return ""
    return _digest(orjson.dumps([told.get("system"), begin])[:_HEAD])


def _digest(name: bytes) -> str:
    """Names may be as long as a body: what is remembered of one is not."""
    return blake2b(name, digest_size=16).hexdigest()


class Replica:
    """One `stepwell serve` on localhost, and the calls that go to it. It ends with this process, whatever ends that."""

    def __init__(self, model: str, flags: Sequence[str], start_s: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._name = ("x-stepwell-replica", f"{socket.gethostname()}:{os.getpid()}")
        program = [*command("stepwell"), "serve", model, "--host", "127.0.0.1", "--port", str(port), *flags]
        # the shell ends the server once this process has gone, which closes its standard input
        script = 'exec 3<&0; "$0" "$@" </dev/null & p=$!; { cat <&3 >/dev/null; kill "$p" 2>/dev/null; } & wait "$p"'
        self._server = subprocess.Popen(
            ["sh", "-c", script, *program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment()
        )
        self._client = httpx.AsyncClient(base_url=self.url, timeout=httpx.Timeout(None, connect=10))
        self._await_start(start_s)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Ray passes it on to whoever routes."""
        return {"url": self.url}

    async def check_health(self) -> None:
        """Ray asks now and then, and replaces a replica that raises."""
        if (status := self._server.poll()) is not None:
            raise RuntimeError(f"stepwell serve has ended with status {status}")
        (await self._client.get("/health", timeout=20)).raise_for_status()

    async def carry(self, call: Call) -> AsyncIterator[Any]:
        """The answer to a call: (status, headers), then its bytes as they come."""
        request = self._client.build_request(call.method, call.path, headers=list(call.headers), content=call.body)
        answer = await self._client.send(request, stream=True)
        try:
            yield answer.status_code, [*((k, v) for k, v in answer.headers.items() if k not in _HOP), self._name]
            async for piece in answer.aiter_raw():
                yield piece
        finally:
            await answer.aclose()

    def __del__(self) -> None:
        self._server.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(30)

    def _await_start(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if (status := self._server.poll()) is not None:
                raise RuntimeError(f"stepwell serve ended with status {status} as it started: its log says why")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/ready", timeout=2) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"stepwell serve was not ready after {seconds:.0f} s: raise start_s")


class Nearest(RequestRouter):  # type: ignore[misc]
    """Ray's request router: the replica where a call is expected to have its first token soonest."""

    def initialize_state(self, ask_s: float = 0.1) -> None:
        self._router = Router()
        self._ask_s = ask_s
        self._asking = httpx.AsyncClient(timeout=ask_s)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        before = {replica_id.unique_id for replica_id in self.curr_replicas}
        super().update_replicas(replicas)
        for gone in before - {replica_id.unique_id for replica_id in self.curr_replicas}:
            self._router.forget_replica(gone)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Every candidate by itself, the best first."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if not by_name:
            return []
        loads = {name: self.replica_queue_len_cache.get(r.replica_id) or 0 for name, r in by_name.items()}
        call = pending_request.args[0] if pending_request is not None and pending_request.args else None
        told: dict[str, Outlook] = {}
        session = call.session if isinstance(call, Call) else ""
        if isinstance(call, Call) and call.generates:
            urls = {name: r.replica_metadata["url"] for name, r in by_name.items() if "url" in r.replica_metadata}
            asked = [name for name in self._router.whom_to_ask(session, loads) if name in urls]
            told, asked = await self._ask(call, asked, urls)
            here = {replica_id.unique_id for replica_id in self.curr_replicas}  # some may have left meanwhile
            self._router.heard([name for name in asked if name in here], told)
            loads = {name: load for name, load in loads.items() if name in here} or loads
        tokens = next(iter(told.values())).tokens if told else 0
        views = [View(name, load, told.get(name)) for name, load in loads.items()]
        order = self._router.choose(session, tokens, views, time.monotonic()).order
        return [[by_name[name]] for name in order]

    async def _ask(
        self, call: Call, names: Sequence[str], urls: Mapping[str, str]
    ) -> tuple[dict[str, Outlook], list[str]]:
        """What those who answer in time expect of the call, and who was asked. The first reads its text, and the others are asked about the
        tokens that it found. If it is slow, they read the text as well: all have the same deadline."""
        if not names:
            return {}, []
        now = asyncio.get_running_loop().time()
        ends = now + self._ask_s
        first = asyncio.create_task(self._outlook(urls[names[0]], call.path, call.headers, call.body, ends))
        await asyncio.wait([first], timeout=self._ask_s * _HEAD_START)
        answer = first.result() if first.done() else None
        told = {} if answer is None else {names[0]: answer[0]}
        others = self._router.whom_to_ask_next(call.session, names, told)
        path, headers, body = call.path, call.headers, call.body
        if answer is not None:
            path, body = "/v1/completions", orjson.dumps({"prompt": answer[1]})
            headers = tuple((name, value) for name, value in headers if name != "content-encoding")
        asked = [self._outlook(urls[name], path, headers, body, ends) for name in others]
        answers = await asyncio.gather(first, *asked)
        found = {name: one[0] for name, one in zip((names[0], *others), answers, strict=True) if one is not None}
        return found, [names[0], *others]

    async def _outlook(
        self, url: str, path: str, headers: Sequence[tuple[str, str]], body: bytes, ends: float
    ) -> tuple[Outlook, list[int]] | None:
        """An outlook and the prompt's token ids; None where they have not come by `ends`, by the event loop's clock, or not at all."""
        try:
            sent = [*headers, ("x-stepwell-outlook", "tokens")]
            async with asyncio.timeout_at(ends):
                answer = await self._asking.post(url + path, headers=sent, content=body)
            told = orjson.loads(answer.content)
            return outlook_in(told["outlooks"][0]), told["prompt_token_ids"][0]
        except (httpx.HTTPError, TimeoutError, ValueError, KeyError, IndexError, TypeError):
            return None


def outlook_in(told: Mapping[str, Any]) -> Outlook:
    """An outlook as a server tells it. Raises KeyError, ValueError or TypeError where that is none."""
    load, prefill, queue = (float(told[name]) for name in ("load_s", "prefill_s", "queue_s"))
    tokens, boundary, requests = (int(told[name]) for name in ("tokens", "boundary", "requests"))
    if not all(0 <= seconds < float("inf") for seconds in (load, prefill, queue)) or not 0 <= boundary <= tokens:
        raise ValueError(f"this is no outlook: {told}")
    return Outlook(tokens, boundary, Tier[str(told["tier"]).upper()], load, prefill, queue, requests)


class StoredResponses:
    """The sessions of responses that `/v1/responses` has stored: whoever goes on from one, or asks for it, goes to its replica."""

    def __init__(self, most: int = _MOST_STORED) -> None:
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._most = most

    def note(self, response: str, session: str) -> None:
        """This response is of this session. The oldest is forgotten where there are too many, and what is no name of one is ignored."""
        if session and response.startswith("resp_") and len(response) < _LONGEST_NAME:
            self._sessions[response] = session
        if len(self._sessions) > self._most:
            self._sessions.popitem(last=False)

    def session_of(self, path: str, body: bytes) -> str:
        """Of the response that a call names, in its path or as `previous_response_id`; "" where it names none that is known."""
        if path.startswith(_STORED):
            return self._sessions.get(path.removeprefix(_STORED).partition("?")[0], "")
        if b"previous_response_id" not in body:
            return ""
        with contextlib.suppress(orjson.JSONDecodeError):
            told = orjson.loads(body)
            named = told.get("previous_response_id") if isinstance(told, dict) else None
            return self._sessions.get(named, "") if isinstance(named, str) else ""
        return ""


class Door:
    """The one endpoint. A call that has not begun to be answered goes to another replica if its own dies; a stream that has begun ends with
    an error that says so."""

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True, method_name="carry")
        self._stored = StoredResponses()

    async def __call__(self, request: Request) -> Response:
        body = await _bounded(request)
        if body is None:
            return _problem(413, f"a body may have {_MOST_BODY >> 20} MiB at most", "body_too_large")
        headers = tuple((k, v) for k, v in request.headers.items() if k not in _HOP | _OURS)
        path = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        call = Call(request.method, path, headers, body, self._session(request, path, body))
        for _ in range(_TRIES if call.generates or call.method == "GET" else 1):  # anything else may have taken effect
            answer = self._replicas.remote(call)
            try:
                status, sent = await anext(answer)
                told = dict(sent)
                if call.path.partition("?")[0] == _RESPONSES and "x-request-id" in told:
                    self._stored.note(told["x-request-id"], call.session)
                if told.get("content-type", "").startswith("text/event-stream"):
                    return StreamingResponse(_stream(answer, call.path), status, told)
                return Response(b"".join([piece async for piece in answer]), status, told)
            except RayError:
                continue
        return _problem(503, f"{_TRIES} replicas have failed in turn: ask again later", "replica_died")

    def _session(self, request: Request, path: str, body: bytes) -> str:
        """Of a call that generates, or that names a stored response; "" for any other."""
        if stored := self._stored.session_of(path, body):
            return stored
        generates = request.method == "POST" and request.url.path in GENERATING
        return session_of(request.headers, body) if generates else ""


async def _bounded(request: Request) -> bytes | None:
    """The body; None as soon as it is longer than it may be."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BODY:
            return None
    return bytes(body)


async def _stream(answer: Any, path: str) -> AsyncIterator[bytes]:
    try:
        async for piece in answer:
            yield piece
    except RayError:
        told = {"message": "the replica that answered has died: send the call again", "type": "server_error"}
        event = b"event: error\n" if path.startswith(("/v1/messages", "/v1/responses")) else b""
        body = {"type": "error", "error": {**told, "code": "replica_died"}}
        yield event + b"data: " + orjson.dumps(body) + b"\n\n"
    finally:
        answer.cancel()


def _problem(status: int, message: str, code: str) -> Response:
    body = {"error": {"message": message, "type": "server_error" if status >= 500 else "invalid_request", "code": code}}
    return Response(orjson.dumps(body), status, media_type="application/json")


def build(args: dict[str, Any]) -> serve.Application:
    """The application that `serve run stepwell.serve_ray:build model=… replicas=…` runs. Raises ConfigError."""
    try:
        told = Arguments.model_validate(args)
    except ValueError as error:
        raise ConfigError(f"stepwell.serve_ray: {error}") from error
    scaling: dict[str, Any] = {"num_replicas": told.replicas}
    if told.max_replicas is not None:
        scaling = {"autoscaling_config": {"min_replicas": told.replicas, "max_replicas": told.max_replicas}}
    replicas = serve.deployment(
        name="stepwell",
        max_ongoing_requests=1024,
        graceful_shutdown_timeout_s=told.drain_s,
        health_check_period_s=5,
        health_check_timeout_s=30,
        ray_actor_options={"num_cpus": told.cpus, "num_gpus": told.gpus},
        request_router_config=RequestRouterConfig(
            request_router_class=Nearest, request_router_kwargs={"ask_s": told.ask_ms / 1000}
        ),
        **scaling,
    )(Replica)
    door = serve.deployment(name="door", max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0})(Door)
    return door.bind(replicas.bind(told.model, shlex.split(told.flags), told.start_s))
