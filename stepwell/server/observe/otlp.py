"""Traces of calls, sent to an OpenTelemetry collector. The one module that imports its SDK: the extra `stepwell[otel]`.

    request ──┬── queue ──┬── load ──┬── prefill ──┬── decode          one row of children for each sequence
              arrived     parked     admitted      first token

Spans are handed to a thread of the SDK, which keeps a bounded number of them and drops the rest: no call waits for a collector.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.server.observe.trace import TRACE

if TYPE_CHECKING:
    from stepwell.server.generation.generate import CheckedCall, Generation

_TRACED = "/v1/"
_COMPLETIONS = "/v1/completions"
_LAST_WORDS = 2.0  # seconds that the last spans get to leave, once the server has ended
_MOST_SEQUENCES = 32  # of one call that have spans of their own; the others count in its sums alone
_SERVER_FAULT = 500


class Otlp:
    """Makes spans of calls and sends them. Close it when the last call has ended."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer("stepwell", metadata.version("stepwell"))

    @classmethod
    def to(cls, endpoint: str) -> Otlp:
        """Send spans to this URL in batches. Headers, timeouts, sampling and the like come from the standard variables, which the
        SDK reads by itself; so does the name of the service, where they say one."""
        own = Resource({SERVICE_NAME: "stepwell", SERVICE_VERSION: metadata.version("stepwell")})
        service = Resource.create().merge(own).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=service, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        return cls(provider)

    def close(self) -> None:
        """Send the remaining spans, within a few seconds."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(_LAST_WORDS)


class Tracing:
    """ASGI middleware that opens a span for each call of the API. Routes find it in the scope of the call."""

    def __init__(self, app: ASGIApp, otlp: Otlp, model: str) -> None:
        self._app = app
        self._model = model
        self._tracer = otlp.tracer
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_TRACED):
            await self._app(scope, receive, send)
            return
        parent = self._propagator.extract(dict(Headers(scope=scope)))
        span = self._tracer.start_span(
            f"POST {scope['path']}", parent, SpanKind.SERVER, {"http.request.method": "POST", "url.path": scope["path"]}
        )
        operation = "text_completion" if scope["path"] == _COMPLETIONS else "chat"
        trace = _Call(self._tracer, span, operation, self._model)
        scope[TRACE] = trace

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.answered(message["status"], Headers(raw=message["headers"]))
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            trace.close()


@dataclass(slots=True)
class _Sequence:
    """When each phase of a sequence began, in nanoseconds of wall time."""

    queued: int
    loading: int | None = None
    admitted: int | None = None
    started: int | None = None
    outcome: AdmissionOutcome | None = None


@dataclass(slots=True)
class _Call:
    """The span of one call, and the state of its open sequences."""

    tracer: Tracer
    span: Span
    operation: str
    model: str
    generation: Generation | None = None
    open: dict[str, _Sequence] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    began_at: int = field(default_factory=time_ns)
    first_at: int | None = None
    status: int = 0

    @property
    def id(self) -> str:
        return format_trace_id(self.span.get_span_context().trace_id)

    def began(self, job: CheckedCall, generation: Generation) -> None:
        self.generation = generation
        now = time_ns()
        for choice in generation.choices[:_MOST_SEQUENCES]:
            self.open[choice.request_id] = _Sequence(now)
        self.span.update_name(f"{self.operation} {self.model}")
        params = job.params
        wanted: dict[str, Any] = {
            "gen_ai.operation.name": self.operation,
            "gen_ai.provider.name": "stepwell",
            "gen_ai.request.model": self.model,
            "gen_ai.response.model": self.model,
            "gen_ai.conversation.id": job.session,
            "gen_ai.request.choice.count": job.n if job.n > 1 else None,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.response.id": job.id,
        }
        self.span.set_attributes({name: value for name, value in wanted.items() if value is not None})

    def loading(self, sequence: str, at: float) -> None:
        if (known := self.open.get(sequence)) is not None:
            known.loading = max(known.queued, _wall(at))

    def admitted(self, sequence: str, outcome: AdmissionOutcome, at: float) -> None:
        if (known := self.open.get(sequence)) is not None:
            known.admitted, known.outcome = max(known.loading or known.queued, _wall(at)), outcome

    def started(self, sequence: str) -> None:
        now = time_ns()
        self.first_at = self.first_at or now
        if (known := self.open.get(sequence)) is not None:
            known.started = now

    def ended(self, sequence: str, reason: str) -> None:
        self.reasons.setdefault(sequence, reason)
        known = self.open.pop(sequence, None)
        if known is not None:
            self._tell(sequence, known, time_ns())

    def answered(self, status: int, headers: Headers) -> None:
        self.status = status
        self.span.set_attribute("http.response.status_code", status)
        if (request_id := headers.get("x-request-id")) is not None:
            self.span.set_attribute("stepwell.request_id", request_id)
        if headers.get("content-type", "").startswith("text/event-stream"):
            self.span.set_attribute("gen_ai.request.stream", True)

    def close(self) -> None:
        for sequence in list(self.open):
            self.ended(sequence, "abort")
        if self.generation is not None:
            self.span.set_attributes(_sums(self.generation, self.reasons))
        if self.first_at is not None:
            self.span.set_attribute("stepwell.time_to_first_token", (self.first_at - self.began_at) / 1e9)
        if self.status >= _SERVER_FAULT or "error" in self.reasons.values():
            kind = str(self.status) if self.status >= _SERVER_FAULT else "generation_failed"
            self.span.set_attribute("error.type", kind)
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end()

    def _tell(self, sequence: str, known: _Sequence, end: int) -> None:
        """The phases that it has been through, each a span."""
        marks = (
            ("queue", known.queued),
            ("load", known.loading),
            ("prefill", known.admitted),
            ("decode", known.started),
        )
        phases = [(name, at) for name, at in marks if at is not None]
        ends = [at for _, at in phases[1:]] + [end]
        parent = set_span_in_context(self.span)
        for (name, at), until in zip(phases, ends, strict=True):
            facts: dict[str, Any] = {"stepwell.sequence": sequence}
            if name == "prefill" and known.outcome is not None:
                facts |= _resume(known.outcome)
            self.tracer.start_span(name, parent, attributes=facts, start_time=at).end(until)


def _wall(at: float) -> int:
    """A moment of the monotonic clock, not after the present one, in nanoseconds of wall time."""
    return time_ns() - max(0, monotonic_ns() - int(at * 1e9))


def _sums(generation: Generation, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Usage and ends of a whole call; how its first prompt was resumed."""
    usage = generation.usage()
    details = usage["prompt_tokens_details"]
    outcome = generation.choices[0].outcome
    cached = {f"stepwell.tokens.{tier}": details[f"{tier}_tokens"] for tier in ("device", "host", "disk")}
    return {
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": details["cached_tokens"],
        "gen_ai.response.finish_reasons": list(reasons.values()),
        **cached,
        **({} if outcome is None else _resume(outcome)),
    }


def _resume(outcome: AdmissionOutcome) -> dict[str, Any]:
    """How one prompt was resumed, and what it lost."""
    return {
        "stepwell.resume.boundary": outcome.boundary,
        "stepwell.resume.reason": outcome.reason.value,
        "stepwell.resume.tier": "none" if outcome.state_tier is None else outcome.state_tier.name.lower(),
        "stepwell.tokens.recomputed": outcome.recomputed,
        **{f"stepwell.lost.{loss.value}": tokens for loss, tokens in outcome.lost},
    }
