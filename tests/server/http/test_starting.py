"""What a server answers while its engine is being built."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from stepwell.base.clock import VirtualClock
from stepwell.server.http.starting import Front, Starting


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/messages", "/"])
def test_every_call_hears_what_the_start_has_come_to(path: str) -> None:
    clock = VirtualClock()
    client = TestClient(Front(Starting(clock, lambda: "reading weights")))
    clock.advance(7.0)
    answer = client.get(path)
    assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
    assert "the server is starting: reading weights (7 s so far)" in answer.json()["error"]["message"]


def test_a_browser_gets_a_page_that_looks_again_and_shows_no_markup_of_others() -> None:
    client = TestClient(Front(Starting(VirtualClock(), lambda: "reading <b>")))
    answer = client.get("/dashboard", headers={"accept": "text/html,*/*"})
    assert answer.status_code == 503 and 'http-equiv="refresh"' in answer.text
    assert "reading &lt;b&gt; (0 s so far)" in answer.text


def test_the_front_answers_with_whatever_application_it_has_by_then() -> None:
    front = Front(Starting(VirtualClock(), lambda: ""))
    client = TestClient(front)
    assert client.get("/health").status_code == 503
    front.app = Starting(VirtualClock(), lambda: "something else")
    assert "something else" in client.get("/health").text


def test_a_handshake_is_refused_with_word_to_come_again() -> None:
    client = TestClient(Front(Starting(VirtualClock(), lambda: "")))
    with pytest.raises(WebSocketDisconnect) as ended, client.websocket_connect("/v1/realtime"):
        pass
    assert ended.value.code == 1013


def test_an_answer_has_an_id_and_may_be_read_by_pages_that_may_call() -> None:
    front = Front(Starting(VirtualClock(), lambda: ""), ("https://page.example",))
    given = {"x-request-id": "mine-1", "origin": "https://page.example"}
    answer = TestClient(front).get("/v1/models", headers=given)
    assert answer.status_code == 503 and answer.headers["x-request-id"] == answer.headers["request-id"] == "mine-1"
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    other = TestClient(Front(Starting(VirtualClock(), lambda: ""))).get("/v1/models", headers=given)
    assert "access-control-allow-origin" not in other.headers
