"""Errors that come before any route: who asks for the wrong path hears of the right one."""

from __future__ import annotations

import httpx
import pytest

from tests.server.harness import Running


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/chat/completions", "try /v1/chat/completions (the base URL of an OpenAI client ends in /v1)"),
        ("/completions", "try /v1/completions"),
        ("/v1/v1/chat/completions", "try /v1/chat/completions"),
        ("/v1/embeddings", "GET /openapi.json"),
        ("/" + "x" * 5000, "GET /openapi.json"),
    ],
)
def test_a_path_that_is_no_route_is_told_the_nearest_one(server: Running, path: str, said: str) -> None:
    answer = httpx.post(server.url + path, json={})
    error = answer.json()["error"]
    assert answer.status_code == 404 and error["type"] == "not_found_error"
    assert said in error["message"] and len(error["message"]) < 300


def test_a_method_that_a_route_does_not_take_is_told_which_it_takes(server: Running) -> None:
    answer = httpx.get(server.url + "/v1/completions")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.json()["error"]["message"] == "/v1/completions takes POST, not GET"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_may_ask_for_the_head_alone(server: Running, path: str) -> None:
    answer = httpx.head(server.url + path)
    assert answer.status_code == 200 and not answer.content
