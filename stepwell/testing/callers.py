"""What the callers of a test's engine hear, and the laws about that: sums, claims and ends (laws 2, 8 and 9)."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Finished, Request
from stepwell.testing.laws import require
from stepwell.testing.reference import Reference


@dataclass(slots=True)
class Told:
    """What the caller of one request has heard."""

    request: Request
    limit: int
    tokens: list[int] = field(default_factory=list)
    outcome: AdmissionOutcome | None = None
    finished: Finished | None = None


def check_outcome(loop: EngineLoop, reference: Reference, request: Request, outcome: AdmissionOutcome) -> None:
    """What an admission claims sums up, and was there once."""
    name, count = request.id, len(request.prompt)
    parts = (outcome.device, outcome.host, outcome.disk, outcome.external, outcome.recomputed)
    require(8, min(parts) >= 0 and sum(parts) == outcome.prompt == count, f"{name}: {outcome} does not sum up")
    require(8, 0 <= outcome.cached <= count - 1, f"{name} claims {outcome.cached} cached tokens of {count}")
    require(8, outcome.cached == outcome.boundary, f"{name} claims {outcome.cached}, resumed at {outcome.boundary}")
    require(8, sum(n for _, n in outcome.lost) == outcome.recomputed, f"{name}: losses do not sum up: {outcome}")
    read = request.read_cache and loop.config.cache
    may = reference.boundaries(request.salt, request.prompt) if read else [0]
    require(2, outcome.boundary in may, f"{name} claims {outcome.boundary} tokens; at most these were ever left: {may}")


def check_end(loop: EngineLoop, told: Told, end: Finished) -> None:
    """An answer ends where its request says, and for the reason that is told."""
    name, params, tokens = told.request.id, told.request.params, told.tokens
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(loop.config.eos))
    ended = [i + 1 for i, t in enumerate(tokens) if t in stops and i + 1 >= params.min_tokens]
    early = [i for i in ended if i < len(tokens)]
    require(8, not early, f"{name} goes on after it should have stopped at {early}")
    if end.reason == "stop":
        require(8, ended == [len(tokens)], f"{name} stops for nothing after {tokens}")
    elif end.reason == "length":
        require(8, len(tokens) == told.limit, f"{name} ends after {len(tokens)} of {told.limit} tokens")
    elif end.reason == "error":
        stranded = loop.config.load_timeout > 0 and "not reported" in end.message
        fair = end.message == "spoiled" or stranded
        require(9, fair, f"{name} is refused, though it was found to fit: {end.message}")
