"""What happens in a replay, noted as it happens: one row a request, and the sums of the measured phase."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionCounts, AdmissionOutcome, Reason
from stepwell.replay.bound import Bound
from stepwell.replay.future import Asked
from stepwell.replay.lanes import TraceRequest


@dataclass(frozen=True, slots=True)
class Played:
    """One request as it went. Times are s of the replay's clock; `device` … `recomputed` sum to `prompt` tokens.

    first     when its first token came; None: none did         bound  tokens that an infinite cache would have reused
    reason    why it was resumed no further; empty where the server does not tell
    measured  belongs to the measured phase                      answered  tokens of the answer
    """

    conversation: str
    edition: int
    lane: int
    stream: int
    index: int
    sent: float
    first: float | None
    ended: float
    prompt: int
    device: int
    host: int
    disk: int
    recomputed: int
    bound: int
    answered: int
    reason: str
    measured: bool
    failed: bool

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first token."""
        return None if self.first is None else self.first - self.sent

    @property
    def itl(self) -> float | None:
        """Mean seconds between two tokens of the answer."""
        if self.first is None or self.answered < 2:
            return None
        return (self.ended - self.first) / (self.answered - 1)


@dataclass(slots=True)
class _Open:
    """A request under way."""

    request: TraceRequest
    sent: float
    bound: int
    measured: bool = False
    first: float | None = None
    answered: int = 0
    outcome: AdmissionOutcome | None = None


@dataclass(slots=True)
class Ledger:
    """Counts a replay as it goes. A request belongs to the measured phase if it was first admitted from `start` (s) on.

    tells_reasons  whether outcomes say why they went no further; those of a live server do not
    admitted       counters of the measured admissions     resumed  of those, by where the state came from
    """

    start: float
    tells_reasons: bool = True
    admitted: AdmissionCounts = field(default_factory=AdmissionCounts)
    resumed: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    rows: list[Played] = field(default_factory=list)
    played: int = 0
    bound: int = 0
    answered: int = 0
    failed: int = 0
    _seen: Bound = field(default_factory=Bound)
    _open: dict[str, _Open] = field(default_factory=dict)
    _sent: list[_Open] = field(default_factory=list)

    @property
    def asked(self) -> list[Asked]:
        """Every request in the order of sending."""
        return [Asked(sent.request, sent.measured) for sent in self._sent]

    def send(self, request: TraceRequest, now: float) -> None:
        bound = self._seen.add(request.conversation, request.turn, request.edition)
        sent = self._open[request.id] = _Open(request, now, bound)
        self._sent.append(sent)
        self.played += 1

    def admit(self, outcome: AdmissionOutcome, now: float) -> None:
        if outcome.readmission:
            return
        sent = self._open[outcome.request_id]
        sent.outcome = outcome
        told = sent.request.turn.prompt
        if outcome.prompt != told:  # the server's tokenizer counts otherwise than the trace does
            sent.bound = min(outcome.prompt - 1, round(sent.bound * outcome.prompt / told))
        if now < self.start:
            return
        sent.measured = True
        self.admitted.add(outcome)
        self.bound += sent.bound
        if outcome.state_tier is not None:
            self.resumed[outcome.state_tier] += 1

    def answer(self, name: str, tokens: int, now: float) -> None:
        """Tokens of an answer arrived."""
        sent = self._open[name]
        sent.answered += tokens
        if sent.first is None:
            sent.first = now
        if now >= self.start:
            self.answered += tokens

    def finish(self, name: str, failed: bool, now: float) -> None:
        """The request ended, with an answer or without."""
        sent = self._open.pop(name)
        measured = sent.measured or (failed and sent.sent >= self.start)
        self.failed += failed and measured
        request, outcome = sent.request, sent.outcome or _unknown(name, sent.request.turn.prompt)
        self.rows.append(
            Played(
                conversation=request.conversation.id,
                edition=request.edition,
                lane=request.lane,
                stream=request.stream,
                index=request.index,
                sent=sent.sent,
                first=sent.first,
                ended=now,
                prompt=outcome.prompt,
                device=outcome.device,
                host=outcome.host,
                disk=outcome.disk,
                recomputed=outcome.recomputed,
                bound=sent.bound,
                answered=sent.answered,
                reason=outcome.reason.value if sent.outcome and self.tells_reasons else "",
                measured=measured,
                failed=failed,
            )
        )

    def abandon(self, now: float) -> None:
        """The replay ends while these are under way: what is known of them is kept."""
        for name in list(self._open):
            self.finish(name, False, now)


def _unknown(name: str, prompt: int) -> AdmissionOutcome:
    """Of a request that was never admitted."""
    return AdmissionOutcome(name, prompt, 0, 0, 0, prompt, 0, 0, None, Reason.COMPLETE)
