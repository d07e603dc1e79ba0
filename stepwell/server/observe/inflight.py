"""Sequences in flight as their callers would see them: how far each has come. No text, no salts, no sessions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from stepwell.base.clock import Clock
from stepwell.cache.reuse.outcome import AdmissionOutcome

PHASES = ("queued", "load", "prefill", "decode")

_SHOWN = 16
"""Characters of a request's id that are shown."""


@dataclass(slots=True)
class Progress:
    """One sequence. `queued` until it is admitted, `load` while that waits for copies, `prefill` until its first token, then `decode`."""

    prompt: int
    began: float
    tenant: str = ""
    outcome: AdmissionOutcome | None = None
    generated: int = 0
    loads: bool = False

    @property
    def phase(self) -> str:
        if self.generated:
            return "decode"
        if self.outcome is not None:
            return "prefill"
        return "load" if self.loads else "queued"


class InFlight:
    """Every sequence that has been sent and has not ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, Progress] = {}
        self._queued = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def queued(self) -> int:
        """Sequences that have not been admitted."""
        return self._queued

    def sent(self, request_id: str, prompt: int, tenant: str = "") -> None:
        """A sequence of `tenant` with a prompt of so many tokens is on its way."""
        self._open[request_id] = Progress(prompt, self._clock.now(), tenant)
        self._queued += 1

    def loading(self, request_id: str) -> None:
        progress = self._open.get(request_id)
        if progress is not None:
            progress.loads = True

    def admitted(self, outcome: AdmissionOutcome) -> None:
        progress = self._open.get(outcome.request_id)
        if progress is not None and progress.outcome is None:
            progress.outcome = outcome
            self._queued -= 1

    def generated(self, request_id: str, tokens: int) -> None:
        progress = self._open.get(request_id)
        if progress is not None:
            progress.generated += tokens

    def is_queued(self, request_id: str) -> bool:
        progress = self._open.get(request_id)
        return progress is not None and progress.outcome is None

    def gone(self, request_id: str) -> None:
        progress = self._open.pop(request_id, None)
        if progress is not None and progress.outcome is None:
            self._queued -= 1

    def clear(self) -> None:
        self._open.clear()
        self._queued = 0

    def rows(self, most: int, tenant: str = "") -> list[dict[str, Any]]:
        """The oldest `most` sequences of `tenant`, or of all if it is empty, for display; ages in seconds. O(sequences).

        Ids are cut: a whole one may be all that is needed to ask for a stored response.
        """
        now = self._clock.now()
        rows = []
        shown = ((name, one) for name, one in self._open.items() if not tenant or one.tenant == tenant)
        for request_id, progress in islice(shown, most):
            outcome = progress.outcome
            rows.append(
                {
                    "id": request_id[:_SHOWN],
                    "phase": progress.phase,
                    "prompt": progress.prompt,
                    "device": outcome.device if outcome is not None else 0,
                    "host": outcome.host if outcome is not None else 0,
                    "disk": outcome.disk if outcome is not None else 0,
                    "generated": progress.generated,
                    "seconds": round(now - progress.began, 1),
                }
            )
        return rows
