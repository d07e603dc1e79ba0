"""What probes and scripts of other engines ask, and the names under which they ask for the model."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from stepwell.server.read.defaults import SamplingDefaults
from stepwell.server.read.names import ServedNames
from tests.engine.scripted import CONTEXT
from tests.server.harness import MODEL, Running, running
from tests.server.http.test_gate import KEY, MINE
from tests.server.routes.test_conversation import real_loop


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Running]:
    names = ServedNames(MODEL, ("claude-haiku-4-5",))
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    with running(tokenizer, loop=real_loop(), keys=Keys([KEY]), allow_reset=True, names=names, defaults=defaults) as up:
        yield up


def test_probes_need_no_key_and_the_rest_does(served: Running) -> None:
    for method in ("GET", "HEAD"):
        assert httpx.request(method, served.url + "/").status_code == 200
    for method in ("GET", "POST"):
        assert httpx.request(method, served.url + "/ping").status_code == 200
    for path in ("/version", "/load", "/get_model_info", "/model_info", "/flush_cache"):
        assert httpx.get(served.url + path).status_code == 401
        assert httpx.get(served.url + path, headers=MINE).status_code == 200


def test_answers_have_the_fields_that_are_asked_for(served: Running) -> None:
    def get(path: str) -> dict[str, object]:
        answer: dict[str, object] = httpx.get(served.url + path, headers=MINE).json()
        return answer

    assert get("/version")["version"] == get("/")["version"]
    assert get("/load") == {"server_load": 0}
    info = get("/get_model_info")
    assert info == get("/model_info") and info["model_path"] == MODEL and info["is_generation"] is True
    sampling = info["preferred_sampling_params"]
    assert isinstance(sampling, dict) and (sampling["temperature"], sampling["top_k"]) == (0.6, 20)


def test_flushing_is_a_reset_and_as_forbidden_as_one(served: Running, tokenizer: Tokenizer) -> None:
    body = {"prompt": "a well that is deep and old " * 3, "max_tokens": 2}
    httpx.post(served.url + "/v1/completions", json=body, headers=MINE, timeout=60)
    freed = httpx.post(served.url + "/flush_cache", headers=MINE).json()["freed_pages"]
    assert freed["device"] > 0
    with running(tokenizer) as other:
        assert httpx.post(other.url + "/flush_cache").status_code == 403


def test_every_served_name_is_taken_and_listed(served: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    for name in (MODEL, "claude-haiku-4-5", None):
        answer = httpx.post(served.url + "/v1/completions", json={**body, "model": name}, headers=MINE, timeout=60)
        assert answer.status_code == 200 and answer.json()["model"] == MODEL
    wrong = httpx.post(served.url + "/v1/completions", json={**body, "model": "gpt"}, headers=MINE)
    assert wrong.status_code == 404 and "'claude-haiku-4-5'" in wrong.json()["error"]["message"]
    listed = httpx.get(served.url + "/v1/models", headers=MINE).json()["data"]
    assert [model["id"] for model in listed] == [MODEL, "claude-haiku-4-5"]
    assert listed[1]["root"] == MODEL and listed[1]["max_model_len"] == CONTEXT
    assert httpx.get(served.url + "/v1/models/claude-haiku-4-5", headers=MINE).json()["id"] == "claude-haiku-4-5"


def test_star_takes_any_name(tokenizer: Tokenizer) -> None:
    names = ServedNames.of(["tiny", "*", "second"], "folder")
    assert (names.all, names.any_name) == (("tiny", "second"), True)
    assert ServedNames.of(["*"], "folder") == ServedNames("folder", (), True)
    with running(tokenizer, names=names) as server:
        body = {"model": "whatever/it is", "prompt": "x", "max_tokens": 1}
        assert httpx.post(server.url + "/v1/completions", json=body).json()["model"] == "tiny"
        described = httpx.get(server.url + "/openapi.json").json()["components"]["schemas"]
        assert described is not None
