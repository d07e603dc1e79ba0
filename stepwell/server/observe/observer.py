"""What the front end tells of its engine to whoever counts."""

from __future__ import annotations

from typing import Protocol

from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.process import messages


class Observer(Protocol):
    """Sees every event of the engine once, whoever reads it."""

    def admitted(self, outcome: AdmissionOutcome) -> None: ...

    def looked_ahead(self, outcome: AdmissionOutcome) -> None: ...

    def generated(self, tokens: int) -> None: ...

    def hung(self) -> None: ...

    def restarted(self) -> None: ...

    def measured(self, stats: messages.Stats) -> None: ...

    def retry_after(self, waiting: int) -> int: ...
