"""Traces of calls: one span each, its phases below it, and no harm where nobody takes them."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from tests.engine.scripted import FAILS, LOADED, SLOW
from tests.server.harness import MODEL, Running, eventually, running
from tests.server.http.test_gate import KEY

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra [otel]")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

from stepwell.server.observe.otlp import Otlp  # noqa: E402

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
PROMPT = "the water and the land and the water again " * 3


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def server(tokenizer: Tokenizer, spans: InMemorySpanExporter) -> Iterator[Running]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with running(tokenizer, otlp=Otlp(provider), keys=Keys([KEY])) as server:
        yield server


def post(server: Running, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}", "traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine-1"}
    return httpx.post(server.url + path, json=body, headers=headers, timeout=60)


def told(spans: InMemorySpanExporter, name: str = "") -> list[ReadableSpan]:
    """Ended spans, of one name or of any, once the call itself has ended: its span is the last."""
    assert eventually(lambda: any(span.kind == SpanKind.SERVER for span in spans.get_finished_spans()))
    return [span for span in spans.get_finished_spans() if name in ("", span.name)]


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_call_is_one_span_of_its_callers_trace(server: Running, spans: InMemorySpanExporter) -> None:
    answer = post(server, prompt=PROMPT, max_tokens=5, session_id="s-1", temperature=0.5).json()
    (span,) = told(spans, f"text_completion {MODEL}")
    assert span.context is not None and span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    usage, known = answer["usage"], facts(span)
    assert known["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert known["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 5
    assert known["gen_ai.response.id"] == answer["id"] and known["stepwell.request_id"] == "mine-1"
    assert known["gen_ai.request.model"] == MODEL and known["gen_ai.conversation.id"] == "s-1"
    assert known["gen_ai.response.finish_reasons"] == ("length",)
    assert (known["gen_ai.request.max_tokens"], known["gen_ai.request.temperature"]) == (5, 0.5)
    assert known["http.response.status_code"] == 200 and span.status.status_code != StatusCode.ERROR
    assert 0 < known["stepwell.time_to_first_token"] < 60
    assert PROMPT[:12] not in json.dumps([dict(s.attributes or {}) for s in spans.get_finished_spans()])


def test_tokens_by_tier_and_the_reason_are_told(server: Running, spans: InMemorySpanExporter) -> None:
    post(server, prompt=PROMPT, max_tokens=1)
    told(spans)
    spans.clear()
    usage = post(server, prompt=PROMPT, max_tokens=1).json()["usage"]
    (span,) = told(spans, f"text_completion {MODEL}")
    known, cached = facts(span), usage["prompt_tokens_details"]["cached_tokens"]
    tiers = [known[f"stepwell.tokens.{tier}"] for tier in ("device", "host", "disk")]
    assert cached > 0 and sum(tiers) == known["gen_ai.usage.cache_read.input_tokens"] == cached
    assert sum(tiers) + known["stepwell.tokens.recomputed"] == known["gen_ai.usage.input_tokens"]
    assert (known["stepwell.resume.boundary"], known["stepwell.resume.reason"]) == (cached, "complete")
    assert known["stepwell.resume.tier"] == "device" and known["stepwell.lost.new"] > 0


def test_phases_follow_each_other_below_the_call(server: Running, spans: InMemorySpanExporter) -> None:
    post(server, prompt=PROMPT, max_tokens=3, n=2)
    call = told(spans, f"text_completion {MODEL}")[0]
    for choice in range(2):
        mine = [s for s in told(spans) if str(facts(s).get("stepwell.sequence", "")).endswith(f"-{choice}")]
        assert [span.name for span in mine] == ["queue", "prefill", "decode"]
        assert all(span.parent is not None and span.parent == call.context for span in mine)
        assert all(a.end_time == b.start_time for a, b in pairwise(mine))
        assert "stepwell.resume.boundary" in facts(mine[1])


def test_a_load_has_a_span_of_its_own(server: Running, spans: InMemorySpanExporter) -> None:
    post(server, prompt=[LOADED, 40], max_tokens=2)
    names = [span.name for span in told(spans)]
    assert names == ["queue", "load", "prefill", "decode", f"text_completion {MODEL}"]


def test_streams_are_told_when_they_end_and_so_are_callers_who_leave(
    server: Running, spans: InMemorySpanExporter
) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"prompt": [SLOW, 40], "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert not spans.get_finished_spans()
    (span,) = told(spans, f"text_completion {MODEL}")
    assert facts(span)["gen_ai.request.stream"] and facts(span)["gen_ai.response.finish_reasons"] == ("abort",)
    assert [s.name for s in told(spans)][:-1] == ["queue", "prefill", "decode"]


@pytest.mark.parametrize(
    ("body", "status", "failed"),
    [({"prompt": 5}, 400, False), ({"prompt": [FAILS]}, 500, True)],
)
def test_calls_that_fail_say_so(
    server: Running, spans: InMemorySpanExporter, body: dict[str, Any], status: int, failed: bool
) -> None:
    assert post(server, **body).status_code == status
    span = told(spans)[-1]
    assert facts(span)["http.response.status_code"] == status
    assert (span.status.status_code == StatusCode.ERROR) is failed
    assert facts(span).get("error.type") == ("500" if failed else None)


def test_only_calls_of_the_api_are_traced_and_the_log_names_the_trace(
    server: Running, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "stepwell.access"):
        httpx.get(server.url + "/health")
        httpx.get(server.url + "/metrics")
        post(server, prompt="x", max_tokens=1)
        assert len([s for s in told(spans) if s.kind == SpanKind.SERVER]) == 1
    lines = [record.__dict__.get("trace_id") for record in caplog.records if record.name == "stepwell.access"]
    assert eventually(lambda: lines[-1] == TRACE) and lines[0] is None


class _Collector(ThreadingHTTPServer):
    """Takes spans as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.taken: list[ExportTraceServiceRequest] = []


class _Taker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        data = gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data
        assert self.path == "/v1/traces" and isinstance(self.server, _Collector)
        self.server.taken.append(ExportTraceServiceRequest.FromString(data))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_collector_hears_of_a_call_by_the_end_of_the_server(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "stepwell-blue")
    collector = _Collector()
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        otlp = Otlp.to(f"http://127.0.0.1:{collector.server_address[1]}/v1/traces")
        with running(tokenizer, otlp=otlp) as server:
            httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=60)
        otlp.close()
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    resources = [resource for request in collector.taken for resource in request.resource_spans]
    names = {span.name for resource in resources for scope in resource.scope_spans for span in scope.spans}
    services = {a.value.string_value for r in resources for a in r.resource.attributes if a.key == "service.name"}
    assert names == {f"text_completion {MODEL}", "queue", "prefill", "decode"} and services == {"stepwell-blue"}


def test_a_collector_that_is_away_or_silent_costs_no_call_anything(tokenizer: Tokenizer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as gone:
        ports = [silent.getsockname()[1], gone.getsockname()[1]]
        gone.close()
        for port in ports:
            otlp = Otlp.to(f"http://127.0.0.1:{port}/v1/traces")
            with running(tokenizer, otlp=otlp) as server:
                for _ in range(3):
                    answer = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 2})
                    assert answer.status_code == 200
            otlp.close()  # bounded, whatever the collector does
