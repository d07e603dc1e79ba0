"""The API document: what it refers to is in it, and what it describes is what the server reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from tests.server.harness import MODEL, Running


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_every_reference_leads_somewhere(server: Running) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    found = set(references(document))
    assert found
    for reference in found:
        place = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
    assert document == httpx.get(server.url + "/openapi.json").json()


def test_bodies_are_described_with_the_one_model_that_is_served(server: Running) -> None:
    paths = httpx.get(server.url + "/openapi.json").json()["paths"]
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        body = paths[path]["post"]["requestBody"]
        assert body["required"]
        schema = body["content"]["application/json"]["schema"]
        assert schema["properties"]["model"]["enum"] == [MODEL, None]
    assert (
        "tools"
        in paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    )
