"""How long calls take, phase by phase, and how long their prompts and answers are: histograms of sequences that were answered."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from stepwell.server.observe.times import Times

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKENS = tuple(float(1 << power) for power in range(0, 21, 2))
_TEXTS = {
    "request_seconds": ("From a call's arrival to the end of a sequence", _SECONDS),
    "queue_seconds": ("From a call's arrival to the admission of a sequence", _SECONDS),
    "prefill_seconds": ("From the admission of a sequence to its first token", _SECONDS),
    "decode_seconds": ("From the first token of a sequence to its last", _SECONDS),
    "prompt_length_tokens": ("Tokens of prompts", _TOKENS),
    "answer_length_tokens": ("Tokens of answers", _TOKENS),
}


@dataclass(slots=True)
class Course:
    """One sequence's times, in seconds of the server's clock."""

    arrived: float
    admitted: float | None = None
    first: float | None = None


@dataclass(slots=True)
class Phases:
    """The histograms, by the last part of their names."""

    registry: CollectorRegistry
    times: dict[str, Times] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (text, bounds) in _TEXTS.items():
            self.times[name] = Times(f"stepwell_{name}", text, bounds)
            self.registry.register(self.times[name])

    def ended(self, course: Course, now: float, prompt: int, answer: int) -> None:
        """A sequence was answered, with this many tokens."""
        admitted = now if course.admitted is None else course.admitted
        first = now if course.first is None else course.first
        for name, value in (
            ("request_seconds", now - course.arrived),
            ("queue_seconds", admitted - course.arrived),
            ("prefill_seconds", first - admitted),
            ("decode_seconds", now - first),
            ("prompt_length_tokens", prompt),
            ("answer_length_tokens", answer),
        ):
            self.times[name].observe(value)
