"""The front end's side of an engine: requests go out, events come back sorted by caller."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence

import msgspec
import numpy as np
import zmq

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import EngineDead, StepwellError
from stepwell.base.geometry import Ints
from stepwell.cache.disk.names import tenant_of
from stepwell.cache.reuse.explain import Explanation, Ladder
from stepwell.engine.config import EngineFacts
from stepwell.engine.process import messages
from stepwell.engine.process.spawn import EngineLink
from stepwell.sched.outlook import Outlook
from stepwell.sched.request import Request
from stepwell.sched.retention import Prefetched, Subject
from stepwell.server.generation.answers import Answers, Patience
from stepwell.server.http.errors import EngineAway, ShuttingDown
from stepwell.server.observe.inflight import InFlight
from stepwell.server.observe.observer import Observer

log = logging.getLogger("stepwell.server")

AHEAD = "ahead-"
"""Prefix of the ids of requests that no caller waits for."""
_READ_AT_ONCE = 64  # messages taken before other tasks of the event loop get their turn


class EngineClient:
    """Owns the list of open sequences. Lives in one event loop.

    dead         why the engine has ended for good
    alive        signs of life that have come
    turn_s       seconds that the engine's loop had spent in one turn by the last of them
    replaceable  what ends the engine ends the calls that are open, and not the client: another engine may follow (`attach`)
    """

    def __init__(
        self,
        link: EngineLink,
        observer: Observer,
        patience: Patience | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._link = link
        self._observer = observer
        self._patience = patience or Patience()
        self._answers: dict[str, Answers] = {}
        self.in_flight = InFlight(clock or WallClock())
        self._numbers = itertools.count(1)
        self._ahead: Answers | None = None
        self._questions: dict[int, asyncio.Future[messages.Answer]] = {}
        self._facts: asyncio.Future[EngineFacts] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self.stats = messages.Stats()
        self.starting = ""
        self.alive = 0
        self.turn_s = 0.0
        self.replaceable = False
        self.dead: str | None = None
        self._away: tuple[str, str] | None = None  # why, and the code of the error
        self._last_words = ""
        self._end: type[EngineDead] = EngineDead  # what is raised once it is
        self._descriptor: int | None = None
        self._listen()

    @property
    def open(self) -> int:
        """Number of sequences that have not ended and that a caller waits for."""
        return len(self._answers) - (self._ahead is not None and any(i.startswith(AHEAD) for i in self._answers))

    @property
    def waiting(self) -> int:
        """Sequences that have not been admitted."""
        return self.in_flight.queued

    def is_queued(self, request_id: str) -> bool:
        """Whether a sequence has not been admitted."""
        return self.in_flight.is_queued(request_id)

    def retry_after(self) -> int:
        """Seconds after which a caller that was refused because of the queue may try again."""
        return self._observer.retry_after(self.waiting)

    async def ready(self) -> EngineFacts:
        """Wait until the engine is built. Raises EngineDead where it never will be."""
        return await asyncio.shield(self._facts)

    def submit(self, requests: Sequence[Request]) -> Answers:
        """Send the sequences of one call. Raises EngineDead at once if the engine has ended."""
        self._end_ahead()
        answers = self._send(requests)
        for request in requests:
            self.in_flight.sent(request.id, len(request.prompt), tenant_of(request.salt))
        answers.limit(self._patience)
        return answers

    def ahead(self, request: Request) -> Answers:
        """Send a request that no caller waits for; its id begins with `AHEAD`. The next `submit` ends it: it then raises StepwellError.

        Raises EngineDead at once if the engine has ended.
        """
        self._end_ahead()
        self._ahead = self._send([request])
        return self._ahead

    @property
    def trouble(self) -> EngineDead | None:
        """Why the engine does not serve, and what its next start has come to; None while it serves."""
        if self.dead is not None:
            return self._end(self.dead)
        if self._away is None:
            return None
        message, code = self._away
        # a new one for each that is refused: one that is raised again and again keeps the frames of all
        return EngineAway(f"{message}: {self.starting}" if self.starting else message, code)

    def _check(self) -> None:
        if (trouble := self.trouble) is not None:
            raise trouble

    def _send(self, requests: Sequence[Request]) -> Answers:
        self._check()
        answers = Answers(self, [request.id for request in requests])
        for request in requests:
            assert request.id not in self._answers, "request ids are never used twice"
            self._answers[request.id] = answers
            self._link.send(messages.submit_of(request))
        return answers

    def _end_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
            ahead.fail(StepwellError("a call has come that somebody waits for"))

    async def explain(self, salt: str, prompt: Ints, read: bool) -> Explanation:
        """What `prompt` would get if it came now. Raises EngineDead."""
        number = next(self._numbers)
        asked = messages.Explain(number, prompt.astype(np.int32).tobytes(), salt, read)
        answer = await self._ask(number, asked)
        assert isinstance(answer, messages.Explained)
        return answer.explanation

    async def outlook(self, salt: str, prompt: Ints, read: bool) -> Outlook:
        """How soon `prompt` would have its first token if it came now. Raises EngineDead."""
        number = next(self._numbers)
        answer = await self._ask(number, messages.Expect(number, prompt.astype(np.int32).tobytes(), salt, read))
        assert isinstance(answer, messages.Expected)
        return answer.outlook

    async def reset(self, salt: str | None) -> dict[str, int]:
        """Drop everything that is not in use, under one salt or under all. Returns the pages freed by tier. Raises EngineDead."""
        number = next(self._numbers)
        answer = await self._ask(number, messages.Reset(number, salt))
        assert isinstance(answer, messages.WasReset)
        return answer.freed

    async def pin(self, subject: Subject, seconds: float) -> int:
        """Pin what is cached of it: it is evicted last. Returns the number of tokens pinned. Raises EngineDead."""
        return await self._pin(subject, seconds)

    async def unpin(self, subject: Subject) -> int:
        """End such a pin. Returns the tokens that were pinned. Raises EngineDead."""
        return await self._pin(subject, None)

    async def _pin(self, subject: Subject, seconds: float | None) -> int:
        number = next(self._numbers)
        answer = await self._ask(number, messages.Pin(number, messages.about(subject), seconds))
        assert isinstance(answer, messages.Pinned)
        return answer.tokens

    async def prefetch(self, subject: Subject) -> Prefetched:
        """Bring it to the device; comes back once it is there, or will not be. Raises EngineDead."""
        number = next(self._numbers)
        answer = await self._ask(number, messages.Prefetch(number, messages.about(subject)))
        assert isinstance(answer, messages.Fetched)
        return answer.done

    async def ladders(self, count: int, owner: str) -> Sequence[Ladder]:
        """The paths that were used last, of one owner's salts or of all. Raises EngineDead."""
        number = next(self._numbers)
        answer = await self._ask(number, messages.Watch(number, count, owner))
        assert isinstance(answer, messages.Watched)
        return answer.ladders

    async def _ask(self, number: int, question: messages.Command) -> messages.Answer:
        self._check()
        future: asyncio.Future[messages.Answer] = self._loop.create_future()
        self._questions[number] = future
        self._link.send(question)
        try:
            return await future
        finally:
            del self._questions[number]

    def forget(self, ids: Sequence[str]) -> None:
        """Abort sequences and drop whatever still arrives for them."""
        known = [i for i in ids if self._answers.pop(i, None) is not None]
        for request_id in known:
            self.in_flight.gone(request_id)
        if known and self.trouble is None:
            self._link.send(messages.Abort(known))

    def die(self, reason: str) -> None:
        """The engine has ended: every open call hears it, new ones are refused. The first reason stands."""
        if self.dead is not None:
            return
        reason = self.last_words(reason)
        if self.dead is None:
            self._lament(reason)
            self._mark_dead(reason)

    def last_words(self, how: str) -> str:
        """What an engine that has ended said of it, which knows better than its exit status; otherwise `how` it ended."""
        while self._descriptor is not None and (answer := self._heard()) is not None:
            self._handle(answer)
        words, self._last_words = self._last_words, ""
        return words or how

    def lose(self, message: str, code: str) -> None:
        """The engine does not serve any more, or not yet: open calls hear it, and new ones are refused with it, until `regain`."""
        self._away, self.starting = (message, code), ""
        if self._answers:  # one that hangs may come back
            self._link.send(messages.Abort(list(self._answers)))
        self._end_all(EngineAway(message, code))

    def regain(self) -> None:
        """The engine serves again."""
        self._away = None

    def detach(self) -> None:
        """Read no more of an engine that has ended."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = None

    def attach(self, link: EngineLink) -> None:
        """Another engine is being built behind `link`: wait until it is `ready`, then `regain`."""
        self.detach()
        self._link = link
        self._facts = self._loop.create_future()
        self.starting, self.turn_s = "", 0.0
        self.stats = messages.Stats()
        self._listen()

    def _listen(self) -> None:
        # The descriptor tells of changes only: `_read` therefore always reads until nothing is left.
        self._descriptor = int(self._link.answers.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._read)
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """End every open call, with ShuttingDown where the engine lives, and leave the event loop."""
        if self.dead is None:
            self._end = ShuttingDown
            self._mark_dead("the server is shutting down")
        self.detach()

    def _lament(self, reason: str) -> None:
        if self._facts.done():  # before that, whoever waits for the engine tells it
            log.error("the engine has stopped: %s", reason)

    def _mark_dead(self, reason: str) -> None:
        self.dead = reason
        self._end_all(self._end(reason))
        self._not_ready(self._end(reason))

    def _end_all(self, error: EngineDead) -> None:
        """Every open call and question ends with `error`."""
        for answers in set(self._answers.values()):
            answers.fail(error)
        self._answers.clear()
        self.in_flight.clear()
        for future in self._questions.values():
            if not future.done():
                future.set_exception(error)

    def _not_ready(self, error: EngineDead) -> None:
        if not self._facts.done():
            self._facts.set_exception(error)
            self._facts.exception()  # whoever waits is told; nobody waiting is no fault

    def _read(self) -> None:
        for _ in range(_READ_AT_ONCE):
            answer = None if self._descriptor is None else self._heard()
            if answer is None:
                return
            self._handle(answer)
        self._loop.call_soon(self._read)

    def _heard(self) -> messages.Answer | None:
        """The next message, or None where none waits. One that cannot be read ends the engine: what it said may be missed by a caller."""
        try:
            return self._link.receive()
        except msgspec.DecodeError as error:
            self._lament(reason := f"a message of the engine cannot be read ({error})")
            self._mark_dead(reason)
            return None

    def _handle(self, answer: messages.Answer) -> None:
        match answer:
            case messages.Batch(events, stats):
                self._deliver(events)
                if stats is not None:
                    self.stats = stats
                    self._observer.measured(stats)
            case (
                messages.Explained(number)
                | messages.Expected(number)
                | messages.WasReset(number)
                | messages.Pinned(number)
                | messages.Fetched(number)
                | messages.Watched(number)
            ):
                future = self._questions.get(number)
                if future is not None and not future.done():
                    future.set_result(answer)
            case messages.Starting(phase):
                self.starting = phase
            case messages.Ready(facts):
                if not self._facts.done():
                    self._facts.set_result(facts)
            case messages.Alive(turn_s):
                self.alive += 1
                self.turn_s = turn_s
            case messages.Dead(reason):
                if self.replaceable:
                    self._last_words = reason
                    self._not_ready(EngineDead(reason))
                elif self.dead is None:
                    self._lament(reason)
                    self._mark_dead(reason)

    def _deliver(self, events: Sequence[messages.WireEvent]) -> None:
        """Pass on what one turn of the engine had to say: mostly tokens, one event a stream."""
        count, open_answers, generated = 0, self._answers, self.in_flight.generated
        for event in events:
            if not isinstance(event, messages.Tokens):
                self._dispatch(event)
                continue
            name, tokens = event.id, len(event.tokens)
            if not name.startswith(AHEAD):
                count += tokens
            answers = open_answers.get(name)
            if answers is not None:  # it was not aborted meanwhile
                generated(name, tokens)
                answers.hear(event)
        if count:
            self._observer.generated(count)

    def _dispatch(self, event: messages.WireEvent) -> None:
        answers = self._answers.get(event.id)  # None: aborted meanwhile
        match event:
            case messages.Loads(request_id, at):
                self.in_flight.loading(request_id)
                if answers is not None:
                    answers.delivery(request_id).loads_at = at
            case messages.Admitted(request_id, outcome, at):
                if request_id.startswith(AHEAD):
                    self._observer.looked_ahead(outcome)
                    return
                self._observer.admitted(outcome)
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("%s", outcome.in_one_line(), extra={"sequence": request_id})
                self.in_flight.admitted(outcome)
                if answers is not None:
                    delivery = answers.delivery(request_id)
                    delivery.outcome, delivery.admitted_at = outcome, at
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
        self.in_flight.gone(request_id)
        answers.end(request_id)
