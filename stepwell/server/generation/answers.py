"""What comes back for one HTTP call, sorted by sequence, and for how long it may come.

One `Answers` object belongs to one HTTP call and carries all of its sequences. What arrives while its reader is busy is
merged, so a slow reader costs memory for tokens only, and never holds up the engine or another reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from stepwell.base.errors import StepwellError
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.process import messages
from stepwell.sched.request import FinishReason, Scored
from stepwell.server.http.errors import queued_too_long, timed_out


class Sender(Protocol):
    """The sender of the sequences of a call, as far as `Answers` needs it."""

    def forget(self, ids: Sequence[str]) -> None:
        """Abort sequences and drop whatever still arrives for them."""

    def is_queued(self, request_id: str) -> bool:
        """Whether a sequence has not been admitted."""

    def retry_after(self) -> int:
        """Seconds after which a caller that was refused because of the queue may try again."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a sequence may take from when it is sent: until it is admitted, and in all. None: no limit."""

    queued: float | None = None
    whole: float | None = None


@dataclass(slots=True)
class Delivery:
    """What arrived for one sequence since the reader last looked. `prompt_scores` come as (first token's place, scores); times
    are the engine's."""

    tokens: list[int] = field(default_factory=list)
    scores: Sequence[Scored] = ()
    prompt_scores: Sequence[tuple[int, list[Scored]]] = ()
    loads_at: float | None = None
    outcome: AdmissionOutcome | None = None
    admitted_at: float = 0.0
    end: FinishReason | None = None
    message: str = ""

    def add_scores(self, news: messages.Tokens) -> None:
        self.scores = [*self.scores, *news.scores]
        if news.prompt_scores:
            self.prompt_scores = [*self.prompt_scores, (news.prompt_from, news.prompt_scores)]


class Answers:
    """Everything that comes back for one call. Leaving the `with` block aborts what has not ended."""

    def __init__(self, client: Sender, ids: Sequence[str]) -> None:
        self._client = client
        self._waiting_for_acceptance = set(ids)
        self._open = set(ids)
        self._ready: dict[str, Delivery] = {}
        self._error: StepwellError | None = None
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[None] | None = None  # who waits
        self._timers: list[asyncio.TimerHandle] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def accepted(self) -> None:
        """Wait until the engine has taken every sequence. Raises RequestError, CapacityError or EngineDead."""
        while self._waiting_for_acceptance:
            await self._wait()
        if self._error is not None:
            raise self._error

    async def next(self) -> dict[str, Delivery]:
        """What has arrived, by sequence; waits for something to arrive. Raises EngineDead when the engine ends."""
        while not self._ready:
            if self._error is not None:
                raise self._error
            await self._news()
            if self._error is not None:
                raise self._error
        ready, self._ready = self._ready, {}
        return ready

    def outcome(self, request_id: str) -> AdmissionOutcome | None:
        """How a sequence was admitted, if that has arrived and was not read yet."""
        waiting = self._ready.get(request_id)
        return None if waiting is None else waiting.outcome

    def abort(self, request_id: str) -> None:
        """Nothing more is wanted for this sequence."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._client.forget([request_id])

    def close(self) -> None:
        """Abort every sequence that has not ended."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._client.forget(sorted(self._open))
        self._open.clear()

    def limit(self, patience: Patience) -> None:
        """End the call when it has taken too long; the clock starts now."""
        if patience.queued is not None:
            self._timers.append(self._loop.call_later(patience.queued, self._end_if_queued, patience.queued))
        if patience.whole is not None:
            self._timers.append(self._loop.call_later(patience.whole, self._expire, timed_out(patience.whole)))

    def _end_if_queued(self, seconds: float) -> None:
        if any(self._client.is_queued(i) for i in self._open):
            self._expire(queued_too_long(seconds, self._client.retry_after()))

    def _expire(self, error: StepwellError) -> None:
        """The call has failed for its caller, whatever has arrived and was not read yet."""
        self._ready.clear()
        self.close()
        self.fail(error)

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        await self._news()
        if self._error is not None:
            raise self._error

    def _news(self) -> asyncio.Future[None]:
        """Done as soon as something has arrived. A bare future, since one is made for every token."""
        assert self._reader is None or self._reader.done(), "one reader at a time"
        self._reader = self._loop.create_future()
        return self._reader

    def hear(self, news: messages.Tokens) -> None:
        """Take new tokens. Called for every token: the delivery keeps the list itself and appends to it, so it is the caller's no more."""
        delivery = self._ready.get(news.id)
        if delivery is None:
            self._ready[news.id] = delivery = Delivery(news.tokens)
        else:
            delivery.tokens += news.tokens
        if news.scores or news.prompt_scores:
            delivery.add_scores(news)
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    def delivery(self, request_id: str) -> Delivery:
        """Where to put what has arrived for a sequence."""
        self._wake()
        delivery = self._ready.get(request_id)
        if delivery is None:
            delivery = self._ready[request_id] = Delivery()
        return delivery

    def accept(self, request_id: str) -> None:
        self._waiting_for_acceptance.discard(request_id)
        self._wake()

    def end(self, request_id: str) -> None:
        self._open.discard(request_id)

    def fail(self, error: StepwellError) -> None:
        """Fail the whole call: its reader gets the error next."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
