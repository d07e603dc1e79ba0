"""Reads streams of three dialects as their clients do, and tells what was wrong with them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent_play.bodies import Answer


class Refused(Exception):
    """The server has answered with an error, or a stream has no end."""


@dataclass(slots=True)
class Ear:
    """Listens to one server. `silence` is the longest time without an event so far, in seconds."""

    client: httpx.Client
    silence: float = 0.0
    errors: list[str] = field(default_factory=list)

    def ask(self, path: str, body: dict[str, Any], stop_after: int | None = None) -> Answer:
        """The whole answer, or what came in the first `stop_after` events. Raises Refused."""
        answer, count, ended = Answer(), 0, False
        with self.client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise Refused(f"{response.status_code} {response.read().decode()[:300]}")
            for event in self._events(response):
                ended = _take(path.partition("?")[0], event, answer)
                count += 1
                if ended or count == stop_after:
                    break
        if not ended and stop_after is None:
            raise Refused("the stream has no end")
        for call in answer.calls:
            if answer.ended not in ("length", "max_tokens", "incomplete"):
                _strict(call)
        return answer

    def _events(self, response: httpx.Response) -> Iterator[dict[str, Any] | None]:
        last, pending = time.monotonic(), ""
        for text in response.iter_text():
            now = time.monotonic()
            self.silence, last = max(self.silence, now - last), now
            *whole, pending = (pending + text).split("\n\n")
            for event in whole:
                data = "".join(line.removeprefix("data: ") for line in event.split("\n") if line.startswith("data: "))
                if data == "[DONE]":
                    yield None
                elif data:
                    yield json.loads(data)


def _strict(call: dict[str, Any]) -> None:
    def refuse(word: str) -> None:
        raise Refused(f"{word} in the arguments of a finished call")

    text = call.get("arguments")
    if text is not None and not isinstance(json.loads(text, parse_constant=refuse), dict):
        raise Refused("the arguments of a finished call are no object")


def _take(path: str, event: dict[str, Any] | None, answer: Answer) -> bool:
    """Whether the stream has come to its end with this event."""
    if event is not None and (event.get("type") in ("error", "response.failed") or event.get("error")):
        raise Refused(json.dumps(event)[:300])
    match path:
        case "/v1/chat/completions":
            return _chat(event, answer)
        case "/v1/messages":
            assert event is not None
            return _messages(event, answer)
        case _:
            assert event is not None
            return _responses(event, answer)


def _chat(event: dict[str, Any] | None, answer: Answer) -> bool:
    if event is None:
        return True
    if event.get("usage"):
        usage = event["usage"]
        answer.prompt, answer.generated = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached = usage["prompt_tokens_details"]["cached_tokens"]
    for choice in event["choices"]:
        delta = choice["delta"]
        answer.said += delta.get("content") or ""
        answer.thought += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                answer.calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            answer.calls[part["index"]]["arguments"] += part["function"].get("arguments", "")
        answer.ended = choice["finish_reason"] or answer.ended
    return False


def _messages(event: dict[str, Any], answer: Answer) -> bool:
    match event["type"]:
        case "message_start":
            usage = event["message"]["usage"]
            answer.cached = usage["cache_read_input_tokens"]
            answer.prompt = usage["input_tokens"] + answer.cached
        case "content_block_start":
            answer.items.append(dict(event["content_block"]))
            answer.items[-1].setdefault("_json", "")
        case "content_block_delta":
            delta, block = event["delta"], answer.items[event["index"]]
            for name in ("text", "thinking", "signature"):
                block[name] = block.get(name, "") + delta[name] if name in delta else block.get(name, "")
            block["_json"] += delta.get("partial_json", "")
        case "message_delta":
            answer.ended = event["delta"]["stop_reason"]
            answer.generated = event["usage"]["output_tokens"]
        case "message_stop":
            answer.items = [_block(block, answer) for block in answer.items]
            return True
    return False


def _block(block: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """A block as Claude Code sends it back; a call that is cut goes back as what could not be parsed."""
    text = block.pop("_json")
    kept = {"text": ("type", "text"), "thinking": ("type", "thinking", "signature"), "tool_use": ("type", "id", "name")}
    found = {name: block[name] for name in kept[block["type"]]}
    if block["type"] == "thinking":
        answer.thought += block["thinking"]
    elif block["type"] == "text":
        answer.said += block["text"]
    else:
        try:
            found["input"] = json.loads(text or "{}")
        except ValueError:
            found["input"] = {"__unparsedToolInput": {"raw": text, "len": len(text)}}
        answer.calls.append({"id": block["id"], "name": block["name"]})
    return found


def _responses(event: dict[str, Any], answer: Answer) -> bool:
    match event["type"]:
        case "response.output_item.done":
            item = event["item"]
            answer.items.append(item)
            if item["type"].endswith("_call"):
                answer.calls.append({"id": item["call_id"], "name": item["name"], "arguments": item.get("arguments")})
            elif item["type"] == "reasoning":
                answer.thought += "".join(part["text"] for part in item["summary"])
            else:
                answer.said += "".join(part["text"] for part in item["content"])
        case "response.completed" | "response.incomplete":
            usage = event["response"]["usage"]
            answer.prompt, answer.generated = usage["input_tokens"], usage["output_tokens"]
            answer.cached = usage["input_tokens_details"]["cached_tokens"]
            answer.ended = event["response"]["status"]
            return True
    return False
