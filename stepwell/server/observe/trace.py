"""Interface through which a call reports to a tracer. Without a tracer, a call carries None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from starlette.requests import Request

from stepwell.cache.reuse.outcome import AdmissionOutcome

if TYPE_CHECKING:
    from stepwell.server.generation.generate import CheckedCall, Generation

TRACE = "stepwell.trace"
"""Where a call's trace is found in its ASGI scope."""


class CallTrace(Protocol):
    """Follows one call. Events of a sequence come in this order: loading (not always), admitted, started, ended.

    `at`: seconds of the machine's monotonic clock. The engine tells of a step when that has ended, so these two are told late.
    """

    @property
    def id(self) -> str:
        """The trace that this call is part of, as W3C writes it: 32 hexadecimal digits."""

    def began(self, job: CheckedCall, generation: Generation) -> None:
        """The call has been read; its sequences are on their way to the engine."""

    def loading(self, sequence: str, at: float) -> None:
        """It waits for copies from a lower tier."""

    def admitted(self, sequence: str, outcome: AdmissionOutcome, at: float) -> None:
        """It computes its prompt."""

    def started(self, sequence: str) -> None:
        """Its first token has come."""

    def ended(self, sequence: str, reason: str) -> None:
        """The sequence has ended. May be called twice."""


def trace_of(request: Request) -> CallTrace | None:
    """The follower of this call. None if it is not traced."""
    return trace_in(request.scope)


def trace_in(scope: Mapping[str, Any]) -> CallTrace | None:
    return cast("CallTrace | None", scope.get(TRACE))
