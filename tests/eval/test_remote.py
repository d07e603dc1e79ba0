"""Servers: what is asked of them, and what is read from their answers."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.cli import app
from stepwell.eval.remote import answer_of, failed_of
from stepwell.server.observe.metrics import Metrics

METRICS = 'stepwell_admissions_total{reason="load_failed(kv)"} 2.0\nstepwell_admissions_total{reason="load_failed(state)"} 1.0\n'


class _Handler(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]]
    own = True

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(
                json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]})
            )
        elif self.path == "/metrics" and self.own:
            self._send(METRICS)  # of earlier calls: they are none of the evaluation's
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        again = body["prompt"] in [b["prompt"] for b in self.asked]
        self.asked.append(body)
        details = {"cached_tokens": 90 if again else 0}
        if self.own:
            details |= {"device_tokens": 0, "host_tokens": 90 if again else 0, "disk_tokens": 0}
        usage = {"prompt_tokens": 100, "completion_tokens": 4, "total_tokens": 104, "prompt_tokens_details": details}
        choice = {"index": 0, "text": " it is 18\n#### 18", "finish_reason": "stop", "logprobs": None}
        told = {"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        self._send(json.dumps(told))

    def _send(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(params=[True, False], ids=["ours", "another's"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, type[_Handler]]]:
    handler = type("Handler", (_Handler,), {"asked": [], "own": request.param})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", handler
        http.shutdown()
        thread.join()


def test_a_server_is_asked_twice_and_its_counters_are_told(server: tuple[str, type[_Handler]]) -> None:
    url, handler = server
    words = ["eval", "--url", url, "--tier", "host" if handler.own else "device", "--questions", "6", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(handler.asked) == 12 and all(b["temperature"] == 0 and b["model"] == "m" for b in handler.asked)
    assert found["questions"] == 6 and found["flips"] == 0 and found["identical_continuations"] == 6
    assert found["pass1"]["strict"] == pytest.approx(1 / 6, abs=1e-4)  # the first question's number is 18
    assert found["served_from_tier"] == 0.9
    assert found["loads_failed"] == (0 if handler.own else None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give either MODEL, the directory of a checkpoint, or --url"),
        (["/nope"], "/nope does not exist: give the directory"),
        (["/nope", "--url", "http://127.0.0.1:9"], "and not both"),
    ],
)
def test_what_there_is_to_judge_is_looked_at_first(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "stepwell.eval.local", None)  # whose libraries take seconds
    done = CliRunner().invoke(app, ["eval", *words])
    assert done.exit_code == 2 and told in " ".join(done.output.split())


def test_a_server_that_is_not_there_is_named() -> None:
    done = CliRunner().invoke(app, ["eval", "--url", "http://127.0.0.1:9", "--questions", "1"])
    assert done.exit_code == 2 and "127.0.0.1:9" in done.output


def test_failed_loads_are_read_from_our_own_metrics_alone() -> None:
    assert failed_of(METRICS) == 3
    assert failed_of("vllm:requests 3\n") is None


def test_failed_loads_are_those_that_the_server_itself_has_counted() -> None:
    metrics = Metrics()
    assert failed_of(metrics.render().decode()) == 0, "when a counter was made is no count"
    for reason in (Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE, Reason.COMPLETE):
        metrics.admitted(AdmissionOutcome("a", 16, 0, 0, 0, 16, 0, 0, None, reason, ((Loss.NEW, 16),)))
    assert failed_of(metrics.render().decode()) == 2


def test_an_answer_without_usage_has_no_sources() -> None:
    answer = answer_of({"choices": [{"text": None, "finish_reason": "length"}]})
    assert answer.text == "" and answer.truncated and answer.sources.prompt == 0 and not answer.loaded
