"""Bodies made from those of agents: fields moved, nulled, doubled, taken out, put in another order, given another type.

No answer may be a server error, every stream must come to an end, and the server must go on to answer.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import httpx

from agent_play.bodies import AGENTS, Agent, Answer, ClaudeCode, Codex
from agent_play.served import Served

_ODD: list[Any] = [
    None,
    "",
    0,
    -1,
    1.5,
    True,
    [],
    {},
    "x",
    "\u2028<|im_end|>",
    [[]],
    {"type": "x"},
    [None],
    2**63,
    "é" * 300,
]
_ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete", b"response.failed", b"event: error")


def seeds(tools: int = 3) -> list[tuple[str, dict[str, Any]]]:
    """Bodies of conversations with calls, results and images; `tools` is how many they declare."""
    found: list[tuple[str, dict[str, Any]]] = []
    for number, kind in enumerate(AGENTS):
        agent = kind(number + 1)
        agent.say("go")
        for step in range(3):
            answer = _answer(agent, step)
            agent.took(answer)
            for call in answer.calls:
                agent.result(call["id"], "done", image=step == 1)
            agent.remind("<system-reminder>x</system-reminder>")
        agent.say("and now?")
        body = agent.body() | {"seed": 1}
        body["tools"] = body.get("tools", [])[:tools]
        found.append((agent.path, _short(body)))
    return found


def _answer(agent: Agent, step: int) -> Answer:
    answer, name = Answer(), f"c{step}"
    answer.said, answer.thought = "I look.", "hm"
    answer.calls = [{"id": name, "name": "read", "arguments": '{"path": "/a"}'}]
    if isinstance(agent, ClaudeCode):
        answer.items = [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "tool_use", "id": name, "name": "read", "input": {"path": "/a"}},
        ]
    elif isinstance(agent, Codex):
        answer.items = [
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "id": "f", "call_id": name, "name": "read", "arguments": '{"path": "/a"}'},
        ]
    return answer


def _short(value: Any) -> Any:
    """The same with short texts: what matters is the shape."""
    if isinstance(value, str):
        return value[:60]
    if isinstance(value, dict):
        return {name: _short(inner) for name, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a body."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = [(value, key) for key in keys]
    for key in keys:
        found += _places(value[key])
    return found


def changed(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The body with some things wrong with it."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = _places(body)
        if not places:
            break
        container, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                container[key] = copy.deepcopy(rng.choice(_ODD))
            case 1:
                del container[key]
            case 2:  # a value from elsewhere
                other, place = rng.choice(places)
                container[key] = copy.deepcopy(other[place]) if _has(other, place) else None
            case 3 if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
            case 4 if isinstance(container, list):
                rng.shuffle(container)
            case _:
                container[key] = (
                    [copy.deepcopy(container[key])] if rng.random() < 0.5 else {"x": copy.deepcopy(container[key])}
                )
    body["max_tokens" if "input" not in body else "max_output_tokens"] = rng.choice((1, 4, 12))
    return body


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def has_end(answer: httpx.Response) -> bool:
    """Whether an answer that was accepted is whole: a stream ends as its API says, and not by a fault inside the server."""
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    return not streamed or any(end in answer.content for end in _ENDS)


def fuzz(server: Served, client: httpx.Client, count: int, seed: int) -> int:
    """Send `count` bodies; prints one line of JSON: {"bodies", "accepted", "server_errors", "endless", "alive_after", "streams_left"}."""
    rng = random.Random(seed)
    known = seeds()
    accepted = errors = endless = 0
    for number in range(count):
        path, body = rng.choice(known)
        sent = changed(body, rng)
        written = json.dumps(sent).encode()
        answer = client.post(path, content=written)
        if answer.status_code >= 500:
            errors += 1
            print(number, path, answer.status_code, answer.text[:300], written[:2000], flush=True)
        elif answer.status_code == 200:
            accepted += 1
            if not has_end(answer):
                endless += 1
                print(number, path, "no end", answer.content[-300:], written[:2000], flush=True)
            if b"internal_error" in answer.content[-2000:]:
                errors += 1
                print(number, path, answer.content[-600:], written[:2000], flush=True)
    alive = all(client.post(path, json=body | {"max_tokens": 4}).status_code == 200 for path, body in known)
    left = [line for line in client.get("/metrics").text.splitlines() if line.startswith("stepwell_queue_requests{")]
    open_ones = sum(float(line.split()[-1]) for line in left)
    told = {"bodies": count, "accepted": accepted, "server_errors": errors, "endless": endless}
    print(json.dumps(told | {"alive_after": alive, "streams_left": open_ones}))
    return 0 if not errors and not endless and alive and not open_ones else 1
