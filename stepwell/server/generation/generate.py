"""One generation call, from checked fields to pieces of visible text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from stepwell.base.clock import Clock
from stepwell.engine.text.detokenizer import Transcript
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import FinishReason, Request, SamplingParams
from stepwell.server.generation.answers import Answers, Delivery
from stepwell.server.generation.choice import Choice
from stepwell.server.generation.client import EngineClient
from stepwell.server.http.errors import GenerationFailed
from stepwell.server.observe import journal
from stepwell.server.observe.metrics import Metrics
from stepwell.server.observe.phases import Course
from stepwell.server.observe.trace import CallTrace
from stepwell.server.parse.reply import Reading, ReplyReader
from stepwell.server.prompt.prompts import Prompt
from stepwell.server.write.deltas import Delta
from stepwell.server.write.scores import Entry

_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call, read and checked: `n` answers to each prompt.

    params   of every sequence, but for the seed (choice i draws from seed + i) and for `max_tokens`, which is cut to the room
             that the prompt leaves in a context of `context` tokens; 0 only says the prompt again
    reading  how answers are taken apart, but for where each prompt leaves its own
    echo     answers begin with their prompts
    keep_stop, show_special   answers show the stop string that ended them; they show special tokens
    arrived  when the call came, in seconds of the server's clock
    """

    id: str
    prompts: tuple[Prompt, ...]
    n: int
    params: SamplingParams
    context: int
    stops: tuple[str, ...]
    salt: str
    session: str | None
    read_cache: bool
    write_cache: bool
    arrived: float
    reading: Reading = field(default_factory=Reading)
    echo: bool = False
    priority: int = 0
    keep_stop: bool = False
    show_special: bool = False

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.n

    def requests(self) -> list[Request]:
        """One request for each choice, in the order of their indices."""
        each = ((prompt, choice) for prompt in self.prompts for choice in range(self.n))
        return [self._request(i, prompt, choice) for i, (prompt, choice) in enumerate(each)]

    def choice(self, index: int, request: Request, tokenizer: Tokenizer) -> Choice:
        """The choice that `request`, made by `requests`, fills."""
        prompt = self.prompts[index // self.n]
        reading = replace(self.reading, start=prompt.start)
        decoder = tokenizer.decoder(request.prompt, self.show_special)
        transcript = Transcript(decoder, self.stops, request.params.min_tokens, self.keep_stop)
        reader = None if reading.plain else ReplyReader(reading)
        choice = Choice(index, request, transcript, reader, reading.end_of_thought)
        if self.echo:
            choice.echo(tokenizer.decode(prompt.ids.tolist()) if prompt.text is None else prompt.text)
        if self.params.max_tokens == 0:
            choice.silence()
        return choice

    def _request(self, index: int, prompt: Prompt, choice: int) -> Request:
        room = self.context - len(prompt.ids)
        wanted = self.params.max_tokens
        most = room if wanted is None else min(wanted, room)
        params = replace(
            self.params,
            max_tokens=max(most, 1),
            min_tokens=min(self.params.min_tokens, most),
            seed=(self.params.seed + choice) % _SEEDS,
        )
        read = self.read_cache and params.prompt_logprobs is None  # what is not computed has no log-probability
        request = Request(f"{self.id}-{index}", prompt.ids, params, self.salt, read, self.write_cache, self.session)
        return replace(request, priority=self.priority, places=prompt.places)


class Piece(NamedTuple):
    """The next piece of one choice; `end` is set on its last piece. A first piece comes with the first token, text or not.

    `tokens` are the new ones of the answer, also those that have no text or whose text is still held back. One is made for every token of a
    stream: a named tuple is built in a third of the time that a frozen dataclass takes.
    """

    choice: Choice
    deltas: Sequence[Delta]
    scores: Sequence[Entry]
    tokens: Sequence[int]
    first: bool
    end: str | None


class Generation:
    """A job at work. Leaving the `with` block aborts whatever has not ended."""

    def __init__(
        self,
        job: CheckedCall,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        clock: Clock,
        trace: CallTrace | None = None,
        ended: Callable[[Choice], None] | None = None,
    ) -> None:
        """`ended` is called with each choice that has ended."""
        self._ended = ended
        self._metrics = metrics
        self._trace = trace
        self._clock = clock
        self._arrived = job.arrived
        self._n = job.n
        requests = job.requests()
        self.choices = [job.choice(i, request, tokenizer) for i, request in enumerate(requests)]
        self._by_id = {choice.request_id: choice for choice in self.choices}
        self._courses = {name: Course(job.arrived) for name in self._by_id}
        self._answers: Answers = client.submit(requests)
        if trace is not None:
            trace.began(job, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("error" if isinstance(error, GenerationFailed) else "abort")

    def close(self, reason: FinishReason = "abort") -> None:
        """Abort what has not ended, counted under `reason`. May be called twice."""
        self._answers.close()
        while self._by_id:
            name, choice = self._by_id.popitem()
            self._metrics.finished(reason, empty=False)
            self._tell(choice, reason)
            if self._trace is not None:
                self._trace.ended(name, reason)

    async def accepted(self) -> None:
        """Wait until the engine has taken every sequence. Raises RequestError, CapacityError or EngineDead."""
        await self._answers.accepted()

    def resume(self) -> str | None:
        """How the first prompt was resumed, in one line, as soon as that is known."""
        first = self.choices[0]
        outcome = first.outcome or self._answers.outcome(first.request_id)
        return None if outcome is None else outcome.in_one_line()

    @property
    def open(self) -> bool:
        """Whether some choice has not ended."""
        return bool(self._by_id)

    async def pieces(self) -> list[Piece]:
        """The next visible text, as soon as there is some; call it while `open`. Raises GenerationFailed or EngineDead."""
        deliveries = await self._answers.next()
        return [self._piece(self._by_id[i], delivery) for i, delivery in deliveries.items() if i in self._by_id]

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage, with cached tokens by tier and the prefill that they saved. A prompt with several choices counts once."""
        firsts = self.choices[:: self._n]
        outcomes = [choice.outcome for choice in firsts if choice.outcome is not None]
        prompt = sum(choice.prompt for choice in firsts)
        completion = sum(choice.transcript.tokens for choice in self.choices)
        external = sum(o.external for o in outcomes)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(o.cached for o in outcomes),
                "device_tokens": sum(o.device for o in outcomes),
                "host_tokens": sum(o.host for o in outcomes),
                "disk_tokens": sum(o.disk for o in outcomes),
                **({"external_tokens": external} if external else {}),
                "saved_ms": round(1000 * sum(self._metrics.saved(o) for o in outcomes)),
            },
            "completion_tokens_details": {"reasoning_tokens": sum(choice.thoughts for choice in self.choices)},
        }

    def _piece(self, choice: Choice, delivery: Delivery) -> Piece:
        if delivery.loads_at is not None or delivery.outcome is not None:
            self._note_admission(choice, delivery)
        deltas, scores, tokens = choice.take(delivery)
        first = self._time(choice, len(delivery.tokens))
        if first:
            self._courses[choice.request_id].first = choice.started
        if choice.transcript.reason is None:
            return Piece(choice, deltas, scores, tokens, first, None)
        self._end(choice, choice.transcript.reason, known=delivery.end is not None)
        return Piece(choice, deltas, scores, tokens, first, choice.finish)

    def _note_admission(self, choice: Choice, delivery: Delivery) -> None:
        if delivery.outcome is not None:
            self._courses[choice.request_id].admitted = self._clock.now()
        if self._trace is not None:
            if delivery.loads_at is not None:
                self._trace.loading(choice.request_id, delivery.loads_at)
            if delivery.outcome is not None:
                self._trace.admitted(choice.request_id, delivery.outcome, delivery.admitted_at)

    def _end(self, choice: Choice, reason: FinishReason, known: bool) -> None:
        """End a choice. `known`: the engine reported its end. Else a stop string or its only call ended it, and the engine is told."""
        if not known:
            self._answers.abort(choice.request_id)
        course = self._courses[choice.request_id]
        self._metrics.finished(reason, empty=choice.spoken == 0)
        self._metrics.phases.ended(course, self._clock.now(), choice.prompt, choice.transcript.tokens)
        self._tell(choice, reason)
        del self._by_id[choice.request_id]
        if self._trace is not None:
            self._trace.ended(choice.request_id, reason)
        if self._ended is not None:
            self._ended(choice)

    def _tell(self, choice: Choice, reason: str) -> None:
        outcome = choice.outcome or self._answers.outcome(choice.request_id)
        course, tokens = self._courses[choice.request_id], choice.transcript.tokens
        journal.tell(
            journal.Ended(choice.request_id, choice.prompt, outcome, course, self._clock.now(), tokens, reason)
        )

    def _time(self, choice: Choice, tokens: int) -> bool:
        """Keep the times of tokens; True with the first one."""
        if not tokens:
            return False
        now = self._clock.now()
        first = choice.started is None
        if choice.started is None:
            self._metrics.first_token(now - self._arrived)
            if self._trace is not None:
                self._trace.started(choice.request_id)
        else:
            self._metrics.next_token((now - choice.started) / tokens)
        choice.started = now
        return first
