"""The front end's side of an engine: requests go out, events come back sorted by caller.

One `Answers` object belongs to one HTTP call and carries all of its sequences. What arrives while its reader is busy is
merged, so a slow reader costs memory for tokens only, and never holds up the engine or another reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

import zmq

from stepwell.base.errors import EngineDead, StepwellError
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.engine import messages
from stepwell.engine.config import EngineFacts
from stepwell.engine.spawn import EngineLink
from stepwell.sched.request import FinishReason, Request

log = logging.getLogger("stepwell.server")

_READ_AT_ONCE = 64  # messages taken before other tasks of the event loop get their turn


class Observer(Protocol):
    """Sees every event of the engine once, whoever reads it."""

    def admitted(self, outcome: AdmissionOutcome) -> None: ...

    def generated(self, tokens: int) -> None: ...


@dataclass(slots=True)
class Delivery:
    """What arrived for one sequence since the reader last looked."""

    tokens: list[int] = field(default_factory=list)
    outcome: AdmissionOutcome | None = None
    end: FinishReason | None = None
    message: str = ""


class Answers:
    """Everything that comes back for one call. Leaving the `with` block aborts what has not ended."""

    def __init__(self, client: EngineClient, ids: Sequence[str]) -> None:
        self._client = client
        self._waiting_for_acceptance = set(ids)
        self._open = set(ids)
        self._ready: dict[str, Delivery] = {}
        self._error: StepwellError | None = None
        self._news = asyncio.Event()

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
            await self._wait()
        ready, self._ready = self._ready, {}
        return ready

    def abort(self, request_id: str) -> None:
        """Nothing more is wanted for this sequence."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._client.forget([request_id])

    def close(self) -> None:
        """Abort every sequence that has not ended."""
        self._client.forget(sorted(self._open))
        self._open.clear()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._news.clear()
        await self._news.wait()
        if self._error is not None:
            raise self._error

    def delivery(self, request_id: str) -> Delivery:
        """Where to put what has arrived for a sequence."""
        self._news.set()
        return self._ready.setdefault(request_id, Delivery())

    def accept(self, request_id: str) -> None:
        self._waiting_for_acceptance.discard(request_id)
        self._news.set()

    def end(self, request_id: str) -> None:
        self._open.discard(request_id)

    def fail(self, error: StepwellError) -> None:
        """The call as a whole has failed: whoever waits hears it next."""
        self._error = error
        self._news.set()


class EngineClient:
    """Owns the list of open sequences. Lives in one event loop."""

    def __init__(self, link: EngineLink, observer: Observer) -> None:
        self._link = link
        self._observer = observer
        self._answers: dict[str, Answers] = {}
        self._not_admitted: set[str] = set()
        self._facts: asyncio.Future[EngineFacts] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self.stats = messages.Stats()
        self.dead: str | None = None
        self._closed = False
        # The descriptor tells of changes only: `_read` therefore always reads until nothing is left.
        self._descriptor = int(link.answers.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._read)
        self._loop.call_soon(self._read)

    @property
    def open(self) -> int:
        """Sequences that have not ended."""
        return len(self._answers)

    @property
    def waiting(self) -> int:
        """Sequences that have not been admitted."""
        return len(self._not_admitted)

    async def ready(self) -> EngineFacts:
        """Wait until the engine is built. Raises EngineDead where it never will be."""
        return await asyncio.shield(self._facts)

    def submit(self, requests: Sequence[Request]) -> Answers:
        """Send the sequences of one call. Raises EngineDead at once if the engine has ended."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        answers = Answers(self, [request.id for request in requests])
        for request in requests:
            assert request.id not in self._answers, "request ids are never used twice"
            self._answers[request.id] = answers
            self._not_admitted.add(request.id)
            self._link.send(messages.submit_of(request))
        return answers

    def forget(self, ids: Sequence[str]) -> None:
        """Abort sequences and drop whatever still arrives for them."""
        known = [i for i in ids if self._answers.pop(i, None) is not None]
        self._not_admitted.difference_update(known)
        if known and self.dead is None:
            self._link.send(messages.Abort(known))

    def die(self, reason: str) -> None:
        """The engine has ended: every open call hears it, new ones are refused. The first reason stands."""
        if self.dead is not None:
            return
        while (answer := self._link.receive()) is not None:  # its last words know better than its exit status
            self._handle(answer)
        if self.dead is None:
            self._lament(reason)
            self._mark_dead(reason)

    def close(self, reason: str = "the server is shutting down") -> None:
        """End every open call and leave the event loop."""
        if self.dead is None:
            self._mark_dead(reason)
        self._closed = True
        self._loop.remove_reader(self._descriptor)

    def _lament(self, reason: str) -> None:
        if self._facts.done():  # before that, whoever waits for the engine tells it
            log.error("the engine has stopped: %s", reason)

    def _mark_dead(self, reason: str) -> None:
        self.dead = reason
        for answers in set(self._answers.values()):
            answers.fail(EngineDead(reason))
        self._answers.clear()
        self._not_admitted.clear()
        if not self._facts.done():
            self._facts.set_exception(EngineDead(reason))
            self._facts.exception()  # whoever waits is told; nobody waiting is no fault

    def _read(self) -> None:
        for _ in range(0 if self._closed else _READ_AT_ONCE):
            answer = self._link.receive()
            if answer is None:
                return
            self._handle(answer)
        if not self._closed:
            self._loop.call_soon(self._read)

    def _handle(self, answer: messages.Answer) -> None:
        match answer:
            case messages.Batch(events, stats):
                for event in events:
                    self._dispatch(event)
                if stats is not None:
                    self.stats = stats
            case messages.Ready(facts):
                if not self._facts.done():
                    self._facts.set_result(facts)
            case messages.Dead(reason):
                if self.dead is None:
                    self._lament(reason)
                    self._mark_dead(reason)

    def _dispatch(self, event: messages.WireEvent) -> None:
        answers = self._answers.get(event.id)  # None: aborted meanwhile
        match event:
            case messages.Tokens(request_id, tokens):
                self._observer.generated(len(tokens))
                if answers is not None:
                    answers.delivery(request_id).tokens += tokens
            case messages.Admitted(request_id, outcome):
                self._observer.admitted(outcome)
                self._not_admitted.discard(request_id)
                if answers is not None:
                    answers.delivery(request_id).outcome = outcome
            case messages.Accepted(request_id):
                if answers is not None:
                    answers.accept(request_id)
            case messages.Finished(request_id, reason, message):
                if answers is not None:
                    delivery = answers.delivery(request_id)
                    delivery.end, delivery.message = reason, message
                    self._drop(request_id, answers)
            case messages.Rejected(request_id):
                if answers is not None:
                    answers.fail(messages.rejection_error(event))
                    self._drop(request_id, answers)

    def _drop(self, request_id: str, answers: Answers) -> None:
        del self._answers[request_id]
        self._not_admitted.discard(request_id)
        answers.end(request_id)
