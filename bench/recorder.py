"""Stands between a program and a server: decides what the model will say, and notes what was asked and answered.

A call gets a seed, under which `bench/scripted_engine.py` finds the tokens of its answer. Nothing else of it is changed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

GENERATE = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
_HOP = {b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding"}
_KEPT = frozenset(
    {"role", "type", "name", "format", "pattern", "$schema", "additionalProperties", "ttl", "effort", "summary"}
    | {"tool_choice", "object", "status"}
)
_KEPT_LISTS = frozenset({"enum", "required", "include"})
_IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id"})
_OVERFLOW = re.compile(rb"prompt is too long|maximum context length")
_NAME = re.compile(rb'"id": ?"((?:msg|resp|chatcmpl)[_-][0-9a-f]+)"')


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says: a thought, some text, and calls of tools as (name, arguments)."""

    say: str = ""
    think: str = "let me see what there is to do here"
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    def text(self, thinks: bool) -> str:
        thought = f"{self.think}\n</think>\n\n" if thinks else ""
        return thought + "\n\n".join(filter(None, (self.say, "\n".join(map(_call, self.calls)))))


def _call(call: tuple[str, dict[str, Any]]) -> str:
    name, arguments = call
    values = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in arguments.items())
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


Script = Callable[[str, dict[str, Any], dict[str, str]], tuple[str, Answer]]
"""From path, body and headers of a call to what kind of call it is, and what is answered."""


@dataclass(slots=True)
class Recorder:
    """An ASGI application. `asked` has a record for each call; `script` says what is answered; whole bodies go to `raw`."""

    upstream: str
    model: Path
    script: Script
    raw: Path | None = None
    thoughtless: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    shapes: Shapes = field(default_factory=lambda: Shapes())
    began: float = field(default_factory=time.monotonic)
    _client: httpx.AsyncClient | None = None
    _tokenizer: Tokenizer | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", scope["type"]
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        record = self._begin(scope, body, {k.decode(): v.decode() for k, v in headers})
        if record["seed"] is not None:
            body = json.dumps(json.loads(body) | {"seed": record["seed"]}).encode()
        self._client = self._client or httpx.AsyncClient(base_url=self.upstream, timeout=600)
        path = scope["path"] + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
        request = self._client.build_request(scope["method"], path, content=body, headers=headers)
        answer = await self._client.send(request, stream=True)
        passed = [(k, v) for k, v in answer.headers.raw if k.lower() not in _HOP]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": passed})
        heard = bytearray()
        try:
            async for chunk in answer.aiter_raw():
                heard += chunk
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()
            self._end(record, answer.status_code, bytes(heard))

    def _begin(self, scope: Any, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        number, path = len(self.asked), scope["path"]
        record = {"n": number, "t": round(time.monotonic() - self.began, 2), "method": scope["method"], "path": path}
        record |= {"kind": "", "seed": None, "status": 0, "took": 0.0, "id": None, "body": None, "error": ""}
        record |= {"hash": None, "overflow": False, "turn": 0, "exit": None}
        record["headers"] = sorted(k for k in headers if k.startswith(("x-", "anthropic")))
        if scope["method"] == "POST" and body:
            asked = json.loads(body)
            if self.raw is not None:
                (self.raw / f"{number}.json").write_text(json.dumps(asked, indent=1))
            record["body"], record["hash"] = self.shapes.of(asked), hash(body)
            if path in GENERATE:
                record["kind"], answer = self.script(path, asked, headers)
                record["seed"] = number + 1
                self._write(number + 1, answer.text(not self.thoughtless and _thinks(path, asked)))
        self.asked.append(record)
        return record

    def _write(self, seed: int, text: str) -> None:
        self._tokenizer = self._tokenizer or Tokenizer.from_file(str(self.model / "tokenizer.json"))
        folder = self.model / "scripts"
        folder.mkdir(exist_ok=True)
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        (folder / f"{seed}.json").write_text(json.dumps(ids))

    def _end(self, record: dict[str, Any], status: int, heard: bytes) -> None:
        found = _NAME.search(heard)
        record["took"] = round(time.monotonic() - self.began - record["t"], 2)
        record["status"], record["id"] = status, found[1].decode() if found else None
        if status >= 400:
            record["error"] = heard.decode("utf-8", "replace")[:300]
            record["overflow"] = _OVERFLOW.search(heard) is not None


def _thinks(path: str, body: dict[str, Any]) -> bool:
    """Whether the prompt of this call leaves the model in a thought."""
    if path == "/v1/messages":
        return body.get("thinking", {}).get("type") in ("enabled", "adaptive")
    effort = body.get("reasoning_effort", (body.get("reasoning") or {}).get("effort"))
    return effort != "none"


@dataclass(slots=True)
class Shapes:
    """Bodies without what was said in them: texts become their lengths, ids are numbered, words that say what something is stay.

    Lists that begin as one of the call before are told by that: `{"same": n}` stands for its first n items.
    """

    _ids: dict[str, str] = field(default_factory=dict)
    _before: dict[str, list[Any]] = field(default_factory=dict)

    def of(self, body: dict[str, Any]) -> dict[str, Any]:
        shaped = self._shape(body, "")
        for key, items in shaped.items():
            if isinstance(items, list):
                shaped[key] = self._shortened(key, items)
        return shaped

    def _shortened(self, key: str, items: list[Any]) -> list[Any]:
        before, self._before[key] = self._before.get(key, []), items
        same = next((i for i, pair in enumerate(zip(items, before, strict=False)) if pair[0] != pair[1]), None)
        count = min(len(items), len(before)) if same is None else same
        return [{"same": count}, *items[count:]] if count else items

    def _shape(self, value: Any, key: str) -> Any:
        match value:
            case dict():
                return {k: self._shape(v, k) for k, v in value.items()}
            case list() if key in _KEPT_LISTS:
                return value
            case list():
                return [self._shape(item, key) for item in value]
            case str() if key in _IDS:
                return self._ids.setdefault(value, f"id{len(self._ids)}")
            case str() if key == "arguments":
                return json.dumps(self._shape(json.loads(value), ""))
            case str() if key not in _KEPT:
                return f"<str:{len(value)}>"
            case _:
                return value
