"""What every call passes on its way in, and its line in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.gate import OPEN_PATHS
from stepwell.server.http.keys import Keys
from tests.server.harness import Running, eventually, running

KEY, OTHER = "key-number-1", "key-number-2"
MINE, THEIRS = {"authorization": f"Bearer {KEY}"}, {"authorization": f"Bearer {OTHER}"}
PAGE = "https://page.example"
BODY = {"prompt": "x", "max_tokens": 1}


@pytest.fixture(scope="module")
def locked(tokenizer: Tokenizer) -> Iterator[Running]:
    """A server with two keys, each with its own salt, and a page that may call it."""
    keys = Keys([KEY, OTHER], salt_per_key=True)
    with running(tokenizer, keys=keys, origins=(PAGE,), allow_reset=True) as server:
        yield server


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong-key"}, {"authorization": KEY}])
def test_without_a_key_nothing_is_served(locked: Running, headers: dict[str, str]) -> None:
    for method, path in (
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("POST", "/cache/reset"),
        ("GET", "/dashboard/events"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
    ):
        answer = httpx.request(method, locked.url + path, headers=headers)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key", path
        assert "Authorization: Bearer KEY" in answer.text and "x-api-key: KEY" in answer.text
        assert answer.headers["www-authenticate"] == "Bearer"


def test_probes_numbers_and_the_page_need_no_key(locked: Running) -> None:
    for path in OPEN_PATHS:
        assert httpx.get(locked.url + path).status_code == 200, path


def test_metrics_may_need_a_key_of_their_own(tokenizer: Tokenizer) -> None:
    secret = {"authorization": "Bearer scrape-me-please"}
    with running(tokenizer, keys=Keys([KEY], metrics_key="scrape-me-please")) as server:
        refused = [httpx.get(server.url + "/metrics", headers=headers) for headers in ({}, MINE)]
        assert all(answer.status_code == 401 and "--metrics-key" in answer.text for answer in refused)
        assert "stepwell_prompt_tokens" in httpx.get(server.url + "/metrics", headers=secret).text
        assert httpx.get(server.url + "/v1/models", headers=secret).status_code == 401
        assert httpx.get(server.url + "/health").status_code == 200


def test_each_key_has_a_cache_of_its_own_whatever_it_names(locked: Running) -> None:
    url = locked.url + "/v1/completions"
    for headers in (MINE, THEIRS):
        for named in ({}, {"cache_salt": "x"}):
            assert httpx.post(url, json={**BODY, **named}, headers=headers).status_code == 200
    assert len({request.salt for request in locked.loop.seen[-4:]}) == 4
    assert all(KEY not in request.salt and OTHER not in request.salt for request in locked.loop.seen)


def test_pages_of_the_named_origin_may_call_and_read_refusals(locked: Running) -> None:
    asked = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    before = httpx.options(locked.url + "/v1/completions", headers=asked)
    assert before.status_code == 200 and before.headers["access-control-allow-origin"] == PAGE
    refused = httpx.post(locked.url + "/v1/completions", json=BODY, headers={"origin": PAGE})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == PAGE
    other = httpx.get(locked.url + "/health", headers={"origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_no_page_may_call_where_none_is_named(server: Running) -> None:
    answer = httpx.get(server.url + "/health", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers


def test_request_id_is_the_callers_own_or_that_of_the_answer(server: Running) -> None:
    url = server.url + "/v1/completions"
    assert httpx.post(url, json=BODY, headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    answer = httpx.post(url, json=BODY)
    assert answer.headers["x-request-id"] == answer.json()["id"]
    for bad in ("a b", "x" * 200, "<script>"):
        assert httpx.post(url, json=BODY, headers={"x-request-id": bad}).headers["x-request-id"].startswith("cmpl-")
    assert httpx.get(server.url + "/nowhere").headers["x-request-id"].startswith("req-")


def test_each_call_is_one_line_with_its_id_and_without_its_text(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "stepwell"):
        body = {"prompt": "sesame", "max_tokens": 1}
        httpx.post(server.url + "/v1/completions?q=sesame", json=body, headers={"x-request-id": "mine-2"})
        assert eventually(lambda: any(vars(r).get("request_id") == "mine-2" for r in caplog.records))
    (line,) = [r for r in caplog.records if vars(r).get("request_id") == "mine-2"]
    assert line.getMessage() == "POST /v1/completions"
    assert vars(line)["status"] == 200 and vars(line)["seconds"] > 0
    told = [r for r in caplog.records if vars(r).get("sequence", "").startswith(vars(line)["completion"])]
    admission, end = sorted(told, key=lambda record: record.levelno)
    assert admission.getMessage().startswith("resumed 0 of ")
    assert end.getMessage().startswith("4 prompt tokens: 4 computed (4 new)") and end.levelno == logging.INFO
    assert not any("sesame" in str(vars(record)) for record in caplog.records)
