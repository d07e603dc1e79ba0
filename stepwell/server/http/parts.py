"""What a server is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepwell.base.clock import Clock, WallClock
from stepwell.engine.config import EngineFacts
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.batches.store import BatchStore
from stepwell.server.generation.client import EngineClient
from stepwell.server.http.gate import Door
from stepwell.server.http.keys import Keys
from stepwell.server.observe.metrics import Metrics
from stepwell.server.prompt.template_use import TemplateUse
from stepwell.server.prompt.templates import Templates
from stepwell.server.read.defaults import SamplingDefaults
from stepwell.server.read.grammar import GrammarReader
from stepwell.server.read.names import ServedNames

if TYPE_CHECKING:
    from stepwell.server.observe.otlp import Otlp


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes on: bytes of a body, seconds until the whole of it is there, sequences that wait to be admitted, bytes of
    responses that later calls may refer to."""

    body_bytes: int = 8_000_000
    body_seconds: float = 60.0
    queue: int = 1024
    response_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a server is made of.

    door         closed once the server is told to stop
    origins      web pages that may call, as CORS names them
    allow_reset  whether callers may empty the cache
    otlp         where calls are traced to
    grammars     reads those that calls bring
    defaults     what a call gets where it says nothing
    template     how the chat template is used
    templates    who renders with it; None: this process
    batches      files and batches of callers; None: there are none
    names        those under which the model is served; None: the engine's own alone
    """

    client: EngineClient
    tokenizer: Tokenizer
    facts: EngineFacts
    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=WallClock)
    keys: Keys = field(default_factory=Keys)
    door: Door = field(default_factory=Door)
    origins: tuple[str, ...] = ()
    allow_reset: bool = False
    otlp: Otlp | None = None
    grammars: GrammarReader = field(default_factory=GrammarReader)
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    template: TemplateUse = field(default_factory=TemplateUse)
    templates: Templates | None = None
    names: ServedNames | None = None
    batches: BatchStore | None = None

    @property
    def served(self) -> ServedNames:
        """The names that calls may give."""
        return self.names or ServedNames(self.facts.model)
