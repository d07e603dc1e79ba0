"""What callers may get wrong: each fault is a 4xx in OpenAI's shape that names the field, and the engine lives on."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.parts import Limits
from tests.engine.scripted import CONTEXT, VOCAB
from tests.server.harness import Running, running

USER = {"role": "user", "content": "hello"}


def deep(levels: int) -> dict[str, Any]:
    """A schema of objects within objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


FIELDS: list[tuple[str, list[Any]]] = [
    ("max_tokens", [-1, 0, "256", 1.5, 2**31, 2**63, 10**30, True, [], {}]),
    ("min_tokens", [-1, "1", 1.5, 2**63, 100]),
    ("temperature", [-1, 2.1, "1", True, []]),
    ("top_p", [0, -0.5, 1.01, "1"]),
    ("top_k", [-2, 1.5, "5", 2**63]),
    ("seed", [-1, 2**63, 2**64, 1.5, "1", True]),
    ("n", [0, -1, 65, 129, 1.5, "1", True]),
    ("stream", ["true", 1, "yes"]),
    ("ignore_eos", ["true", 1]),
    ("read_cache", ["false", 0]),
    ("write_cache", ["false", 0]),
    ("cache_salt", ["", 1, "x" * 257]),
    ("session_id", ["", 1, "x" * 257]),
    ("stop", ["", [""], [1], [None], ["x"] * 17, {}, 3, "x" * 2000]),
    ("stop_token_ids", [[-1], [VOCAB], [VOCAB + 10**6], [None], ["x"], [1.5], [2**63], [True], 5, "x", [1] * 257]),
    ("stream_options", [{"include_usage": True}, "x", 1]),
    ("logprobs", ["x", -1, 1.5, 21, [], {}]),
    ("prompt_logprobs", [-1, 21, "1", True, 1.5]),
    (
        "logit_bias",
        [
            *({name: 1} for name in ("-1", str(VOCAB), str(VOCAB + 10**6), str(2**63), "x", "1.5", "", "٣", " 5")),
            {"5": "1"},
            {"5": 101},
            {"5": -101},
            {"5": None},
            {str(i): 1 for i in range(1025)},
            [],
            5,
        ],
    ),
    ("suffix", ["x"]),
    ("presence_penalty", [-2.1, 2.1, "1", True]),
    ("frequency_penalty", [-2.1, 2.1, "1", []]),
    ("repetition_penalty", [0, -1, 11, "1", 5e-324]),
    ("min_p", [-0.1, 1.1, "0"]),
    ("priority", ["1", 1.5, True, 1001, -1001]),
    ("return_token_ids", [1, "true"]),
    (
        "response_format",
        [
            {},
            {"type": "xml"},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {"schema": 5}},
            {"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}},
            {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": 2, "maximum": 1}}},
            {"type": "json_schema", "json_schema": {"schema": {"$ref": "file:///etc/hostname"}}},
            {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 200_000]}}},
            {"type": "json_schema", "json_schema": {"schema": deep(300)}},
            "json_object",
        ],
    ),
    (
        "structured_outputs",
        [
            {"regex": "("},
            {"regex": 5},
            {"regex": "a", "choice": ["b"]},
            {"nothing": 1},
            {"choice": []},
            {"choice": [1]},
            {"choice": ["x"] * 1025},
            {"grammar": "start: start"},
            {"json": "{"},
            {"json": '{"a":' * 2000},
            {"json": '{"type": "integer", "maximum": 1e999}'},
            {"json": 5},
            "x",
        ],
    ),
    ("guided_regex", [5, []]),
    ("model", [1, []]),
]
CHAT_FIELDS: list[tuple[str, list[Any]]] = [
    ("logprobs", [1, "true"]),
    ("top_logprobs", [5, 21, -1, "1", True]),  # 5: without logprobs
    ("max_completion_tokens", [0, -1, "5", 2**63]),
    ("parallel_tool_calls", ["no", 1]),
    ("tool_choice", ["required", "any", 5, [], {}, {"type": "function", "function": {"name": "f"}}]),
    (
        "tools",
        [
            *(
                {"type": "function", "function": function}
                for function in ({}, {"name": ""}, {"name": "a b"}, {"name": 5})
            ),
            {"type": "function"},
            {"type": "web_search"},
            {"type": "function", "function": {"name": "f", "parameters": []}},
            {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a>b": {}}}}},
            {"type": "function", "function": {"name": "f"}},  # the template of these tests knows no tools
        ],
    ),
]
TEXT_FIELDS: list[tuple[str, list[Any]]] = [
    ("logprobs", [True]),
    ("echo", ["true", 1]),
    ("best_of", [2, 0, "1"]),
    ("max_tokens", [0]),
]
PROMPTS: list[Any] = [
    "",
    [],
    [[]],
    [""],
    ["x", ""],
    ["x", 1],
    [1, "x"],
    [-1],
    [VOCAB],
    [VOCAB + 10**6],
    [2**63],
    [2**64],
    [None],
    [1.5],
    [True],
    [[1], [None]],
    [[[1]]],
    None,
    5,
    {},
    True,
    [1] * CONTEXT,
    "x" * (CONTEXT * 20),
    ["x"] * 1025,
]
MESSAGES: list[Any] = [
    [],
    None,
    "hello",
    {},
    [None],
    ["hello"],
    [{}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": {}}],
    [{"role": 5, "content": "x"}],
    [{"role": "", "content": "x"}],
    [{"content": "x"}],
    [{"role": "user", "content": ["x"]}],
    [{"role": "user", "content": [{"text": "x"}]}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
    [{"role": "user", "content": [{"type": {}, "text": "x"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
    [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
    [{"role": "assistant", "content": "x", "tool_calls": ["x"]}],
    [{"role": "assistant", "content": "x", "tool_calls": {"function": {"name": "f"}}}],
    [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": 5}}]}],
    [{"role": "assistant", "content": "x", "function_call": {"name": 5}}],
    [{"role": "user", "content": "x" * (CONTEXT * 20)}],
]


def check(server: Running, response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, in the one shape that all have."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and 5 < len(error["message"]) < 400
    return error


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "values"), FIELDS, ids=[name for name, _ in FIELDS])
def test_wrong_fields_are_named(server: Running, name: str, values: list[Any]) -> None:
    before = len(server.loop.seen)
    extra = {"max_tokens": 5} if name == "min_tokens" else {}
    with httpx.Client() as caller:
        for value in values:
            for path, body in (
                ("/v1/completions", {"prompt": "x"}),
                ("/v1/chat/completions", {"messages": [USER]}),
            ):
                error = check(server, caller.post(server.url + path, json={**body, **extra, name: value}))
                assert (error["param"] or "").split(".")[0] == name, (value, error)
    assert len(server.loop.seen) == before


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: repr(p)[:30])
def test_wrong_prompts_are_refused(server: Running, prompt: Any) -> None:
    error = check(server, httpx.post(server.url + "/v1/completions", json={"prompt": prompt}))
    assert error["param"] == "prompt"


@pytest.mark.parametrize(("name", "values"), CHAT_FIELDS, ids=[name for name, _ in CHAT_FIELDS])
def test_wrong_chat_fields_are_named(server: Running, name: str, values: list[Any]) -> None:
    for value in [[value] for value in values] if name == "tools" else values:
        body = {"messages": [USER], name: value}
        error = check(server, httpx.post(server.url + "/v1/chat/completions", json=body))
        assert (error["param"] or "").split(".")[0] == name, (value, error)


@pytest.mark.parametrize(("name", "values"), TEXT_FIELDS, ids=[name for name, _ in TEXT_FIELDS])
def test_wrong_completion_fields_are_named(server: Running, name: str, values: list[Any]) -> None:
    for value in values:
        error = check(server, httpx.post(server.url + "/v1/completions", json={"prompt": "x", name: value}))
        assert error["param"] == name, (value, error)


def test_fields_that_contradict_each_other_are_refused(server: Running) -> None:
    for path, body, name in (
        ("/v1/completions", {"prompt": "x", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x", "guided_regex": "a", "guided_choice": ["b"]}, "structured_outputs"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "response_format": {"type": "json_object"}, "guided_regex": "a"},
            "structured_outputs",
        ),
    ):
        assert check(server, httpx.post(server.url + path, json=body))["param"] == name


def test_missing_fields_are_named(server: Running) -> None:
    assert check(server, httpx.post(server.url + "/v1/completions", json={}))["param"] == "prompt"
    assert check(server, httpx.post(server.url + "/v1/chat/completions", json={}))["param"] == "messages"
    assert check(server, httpx.post(server.url + "/detokenize", json={}))["param"] == "tokens"
    assert check(server, httpx.post(server.url + "/tokenize", json={}))["param"] == "prompt"


@pytest.mark.parametrize("messages", MESSAGES, ids=lambda m: repr(m)[:30])
def test_wrong_messages_are_refused(server: Running, messages: Any) -> None:
    error = check(server, httpx.post(server.url + "/v1/chat/completions", json={"messages": messages}))
    assert error["param"].startswith("messages")


def test_what_no_kind_of_value_fits_is_said_in_words(server: Running) -> None:
    body = {"messages": [USER], "chat_template_kwargs": {"a": {"deep": 1}}}
    error = check(server, httpx.post(server.url + "/v1/chat/completions", json=body))
    assert error["param"] == "chat_template_kwargs.a"
    assert "must be a string, a number, true, false or null, not {'deep': 1}" in error["message"]


def test_template_variables_cannot_replace_the_template(server: Running) -> None:
    for name in ("chat_template", "tokenize", "messages", "conversation"):
        body = {"messages": [USER], "chat_template_kwargs": {name: "x"}}
        assert (
            check(server, httpx.post(server.url + "/v1/chat/completions", json=body))["param"] == "chat_template_kwargs"
        )


def test_prompt_that_is_too_long_is_told_both_numbers(server: Running) -> None:
    error = check(server, httpx.post(server.url + "/v1/completions", json={"prompt": [5] * (CONTEXT + 904)}))
    assert "maximum context length is 4096 tokens" in error["message"] and "5000 tokens" in error["message"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"5",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x"} trailing',
        b'{"prompt": "x", "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 1_000_000,
        b'{"prompt": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    ],
    ids=lambda b: repr(b[:30]),
)
def test_malformed_json_is_a_400(server: Running, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        check(server, httpx.post(server.url + path, content=body))


def test_bodies_over_the_limit_are_a_413(tokenizer: Tokenizer) -> None:
    with running(tokenizer, Limits(body_bytes=100_000)) as server:
        url = server.url + "/v1/completions"
        large = json.dumps({"prompt": "x" * 20_000_000}).encode()
        assert "100,000" in check(server, httpx.post(url, content=large, timeout=20), 413)["message"]

        def pieces() -> Any:
            for _ in range(200):
                yield b" " * 1000

        check(server, httpx.post(url, content=pieces(), timeout=20), 413)  # no Content-Length to look at
        assert httpx.post(url, json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_compressed_body_is_told_what_is_wrong_with_it(server: Running) -> None:
    body = gzip.compress(json.dumps({"prompt": "x", "max_tokens": 1}).encode())
    answer = httpx.post(server.url + "/v1/completions", content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415 and "uncompressed" in answer.json()["error"]["message"]
    headers = {"content-encoding": "identity"}
    assert httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers).is_success


def test_unknown_models_routes_and_methods(server: Running) -> None:
    error = check(server, httpx.post(server.url + "/v1/completions", json={"model": "other", "prompt": "x"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    check(server, httpx.get(server.url + "/v1/models/no/such"), 404)
    check(server, httpx.get(server.url + "/v1/nothing"), 404)
    response = httpx.get(server.url + "/v1/completions")
    check(server, response, 405)
    assert response.headers["allow"] == "POST"


def test_unknown_fields_are_ignored_and_logged_once(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    body = {"prompt": "x", "max_tokens": 1, "frobnicate": {"deep": 1}, "user": "me", "logprobs": None, "n": None}
    for _ in range(2):
        assert httpx.post(server.url + "/v1/completions", json=body).status_code == 200
    assert len([r for r in caplog.records if "frobnicate" in r.getMessage()]) == 1
    assert not [r for r in caplog.records if "'user'" in r.getMessage()]


def test_full_queue_is_a_503_and_too_many_sequences_a_400(tokenizer: Tokenizer) -> None:
    with running(tokenizer, Limits(queue=4)) as server:
        url = server.url + "/v1/completions"
        check(server, httpx.post(url, json={"prompt": "x", "n": 5}))
        server.loop.gate.clear()
        with httpx.stream("POST", url, json={"prompt": "x", "n": 3, "max_tokens": 1, "stream": True}) as waiting:
            response = httpx.post(url, json={"prompt": "x", "n": 2})
            check(server, response, 503)
            assert int(response.headers["retry-after"]) >= 1
            server.loop.gate.set()
            waiting.read()
        assert httpx.post(url, json={"prompt": "x", "n": 2, "max_tokens": 1}).status_code == 200


def test_engine_lives_after_all_of_it(server: Running) -> None:
    assert httpx.get(server.url + "/health").json() == {"status": "ok"}
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": " ", "max_tokens": 2})
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert server.client.open == 0
