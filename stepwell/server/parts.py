"""What a server is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.base.clock import Clock, WallClock
from stepwell.engine.config import EngineFacts
from stepwell.engine.tokenizer import Tokenizer
from stepwell.server.client import EngineClient
from stepwell.server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes on: bytes of a body, and sequences that wait to be admitted."""

    body_bytes: int = 8_000_000
    queue: int = 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a server is made of."""

    client: EngineClient
    tokenizer: Tokenizer
    facts: EngineFacts
    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=WallClock)
