"""Interface through which the front end reports engine events to metrics and logs."""

from __future__ import annotations

from typing import Protocol

from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.process import messages


class Observer(Protocol):
    """Gets every event of the engine once."""

    def admitted(self, outcome: AdmissionOutcome) -> None: ...

    def looked_ahead(self, outcome: AdmissionOutcome) -> None: ...

    def generated(self, tokens: int) -> None: ...

    def hung(self) -> None: ...

    def restarted(self) -> None: ...

    def measured(self, stats: messages.Stats) -> None: ...

    def retry_after(self, waiting: int) -> int: ...
