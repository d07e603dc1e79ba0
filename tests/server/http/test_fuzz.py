"""Bodies of coding agents with things wrong with them: none is a server error, every stream has an end, the server goes on to answer."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.testing.agents import write_agent_tokenizer
from tests.engine.scripted import CONTEXT
from tests.server.harness import MODEL, Running, eventually, running

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

fuzz = importlib.import_module("agent_play.fuzz")

BODIES = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_agent_tokenizer(tmp_path_factory.mktemp("agents"), 300, CONTEXT)  # the loop acts up on higher tokens
    with running(Tokenizer.load(str(path))) as made:
        yield made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_no_body_is_a_server_error_and_every_stream_has_an_end(server: Running, seed: int) -> None:
    rng = random.Random(seed)
    known = [(path, body | {"model": MODEL}) for path, body in fuzz.seeds(tools=1)]
    accepted = 0
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(BODIES // 4):
            path, body = rng.choice(known)
            sent = fuzz.changed(body, rng)
            answer = client.post(path, json=sent)
            assert answer.status_code < 500, sent
            accepted += answer.status_code == 200
            assert answer.status_code != 200 or fuzz.has_end(answer), sent
        for path, body in known:
            limit = "max_output_tokens" if "input" in body else "max_tokens"
            answer = client.post(path, json={**body, limit: 2})
            assert answer.status_code == 200, answer.text
    assert accepted > BODIES // 4 // 5
    assert eventually(lambda: server.client.open == 0)
