"""One generation call, from checked fields to pieces of visible text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from stepwell.base.clock import Clock
from stepwell.base.geometry import Ints
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.engine.detokenizer import Transcript
from stepwell.engine.tokenizer import Tokenizer
from stepwell.sched.request import FinishReason, Request, SamplingParams, Scored
from stepwell.server.generation.answers import Answers, Delivery
from stepwell.server.generation.client import EngineClient
from stepwell.server.http.errors import GenerationFailed
from stepwell.server.observe import journal
from stepwell.server.observe.metrics import Metrics
from stepwell.server.observe.phases import Course
from stepwell.server.observe.trace import CallTrace
from stepwell.server.parse.answer import Answer
from stepwell.server.parse.reply import Reading, ReplyReader
from stepwell.server.prompt.prompts import Prompt
from stepwell.server.prompt.written import Written
from stepwell.server.write.deltas import CallOpened, Delta, Said, Thought
from stepwell.server.write.scores import Entry

_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Job:
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


class Choice:
    """One sequence as its caller sees it.

    spoken    characters of text, and calls of tools
    thoughts  tokens of the answer up to the end of its thought
    answer    what it is made of
    tokens    its tokens
    """

    __slots__ = (
        "_echo",
        "_end_of_thought",
        "_prompt",
        "_reader",
        "_silent",
        "answer",
        "index",
        "outcome",
        "prompt_scores",
        "request_id",
        "spoken",
        "started",
        "thoughts",
        "tokens",
        "transcript",
    )

    def __init__(
        self,
        index: int,
        request: Request,
        transcript: Transcript,
        reader: ReplyReader | None,
        end_of_thought: int | None = None,
    ) -> None:
        """`reader` None: all text is simply said."""
        self.index = index
        self.request_id = request.id
        self.transcript = transcript
        self.outcome: AdmissionOutcome | None = None
        self.started: float | None = None
        self.spoken = 0
        self.thoughts = 0
        self.prompt_scores: list[Scored] = []
        self._prompt = request.prompt
        self._reader = reader
        self._end_of_thought = end_of_thought
        self._echo: str | None = None
        self._silent = False
        self.answer = Answer()
        self.tokens: list[int] = []

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self._prompt)

    @property
    def reason(self) -> FinishReason | None:
        return self.transcript.reason

    @property
    def finish(self) -> str | None:
        """The reason as OpenAI's API names it. An answer with a call that has no end is cut, not finished."""
        called = self.reason == "stop" and self._reader is not None and self._reader.calls > 0 and not self._reader.cut
        return "tool_calls" if called else self.reason

    def echo(self, text: str) -> None:
        """Begin the answer with the prompt's own text."""
        self._echo = text

    def silence(self) -> None:
        """Drop the token that the engine has to sample, because it cannot do with none."""
        self._silent = True

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's tokens."""
        ids: list[int] = self._prompt.tolist()
        return ids

    def take(self, delivery: Delivery) -> tuple[list[Delta], list[Entry], Sequence[int]]:
        """What a delivery makes visible, the scores of its tokens, and those tokens of it that belong to the answer.

        Raises GenerationFailed where the engine gave up.
        """
        if self.outcome is None:
            self.outcome = delivery.outcome
        if delivery.end in ("error", "abort"):
            raise GenerationFailed(delivery.message or "the engine gave up this request: send it again")
        for first, scores in delivery.prompt_scores:
            self.prompt_scores += scores[1 + len(self.prompt_scores) - first :]
        deltas, entries = self._echoed(delivery)
        tokens: Sequence[int] = () if self._silent else delivery.tokens
        end: FinishReason | None = "length" if self._silent and delivery.end else delivery.end
        before = self.transcript.tokens
        thinking = self._reader is not None and self._reader.thinking
        said = self._read(self.transcript.take(tokens, end))
        self._count_thoughts(tokens, before, thinking or any(isinstance(d, Thought) for d in said))
        for delta in said:
            self.spoken += len(delta.text) if isinstance(delta, Said) else isinstance(delta, CallOpened)
        self.answer.add(said)
        self.tokens += tokens
        counted = tokens[: self.transcript.tokens - before]
        entries += zip(counted, delivery.scores, strict=False)
        return deltas + said, entries, counted

    def written(self) -> Written | None:
        """What is to be kept of the calls of an answer that has ended, so that it can stand in later prompts as it was written."""
        if self._reader is None or self.finish != "tool_calls" or self._reader.over:
            return None
        return self.answer.written(self._reader.tail)

    def held(self) -> Ints:
        """Tokens of the prompt and the answer."""
        return np.concatenate((self._prompt, np.asarray(self.tokens, np.int32)))

    def prompt_entries(self) -> list[Entry]:
        """Every token of the prompt with its score, or nothing where they were not asked for."""
        if len(self.prompt_scores) < len(self._prompt) - 1:
            return []
        return list(zip(self._prompt.tolist(), [None, *self.prompt_scores], strict=True))

    def _count_thoughts(self, tokens: Sequence[int], before: int, thought: bool) -> None:
        """`tokens` follow `before` others; `thought`: some of them are one, or end one.

        Where the mark that ends a thought is no token of its own, tokens that arrive together count together.
        """
        if not thought:
            return
        self.thoughts = self.transcript.tokens
        if self._reader is not None and not self._reader.thinking and self._end_of_thought in tokens:
            self.thoughts = before + tokens.index(self._end_of_thought) + 1

    def _echoed(self, delivery: Delivery) -> tuple[list[Delta], list[Entry]]:
        if self._echo is None or not delivery.tokens:
            return [], []
        text, self._echo = self._echo, None
        return [Said(text)] if text else [], self.prompt_entries()

    def _read(self, text: str) -> list[Delta]:
        if self._reader is None:
            return [Said(text)] if text else []
        deltas = self._reader.push(text) if text else []
        ended = self.transcript.reason is not None
        if ended and not self._reader.over:
            deltas += self._reader.flush(cut=self.reason == "length" or self.transcript.stop is not None)
        if self._reader.over or (ended and self._reader.cut and self.transcript.stop is None):
            self.transcript.reason = "length" if self._reader.cut else "stop"
        return deltas


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of one choice; `end` is set on its last piece. A first piece comes with the first token, text or not.

    `tokens` are the new ones of the answer, also those that have no text or whose text is still held back.
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
        job: Job,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        clock: Clock,
        trace: CallTrace | None = None,
        ended: Callable[[Choice], None] | None = None,
    ) -> None:
        """`ended` is told of each choice that has come to its end."""
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
        return None if outcome is None else outcome.explain()

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Visible text as it appears, until every choice has ended. Raises GenerationFailed or EngineDead."""
        while self._by_id:
            deliveries = await self._answers.next()
            yield [self._piece(self._by_id[i], delivery) for i, delivery in deliveries.items() if i in self._by_id]

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage, with cached tokens by tier and the prefill that they saved. A prompt with several choices counts once."""
        firsts = self.choices[:: self._n]
        outcomes = [choice.outcome for choice in firsts if choice.outcome is not None]
        prompt = sum(choice.prompt for choice in firsts)
        completion = sum(choice.transcript.tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(o.cached for o in outcomes),
                "device_tokens": sum(o.device for o in outcomes),
                "host_tokens": sum(o.host for o in outcomes),
                "disk_tokens": sum(o.disk for o in outcomes),
                "saved_ms": round(1000 * sum(self._metrics.saved(o) for o in outcomes)),
            },
            "completion_tokens_details": {"reasoning_tokens": sum(choice.thoughts for choice in self.choices)},
        }

    def _piece(self, choice: Choice, delivery: Delivery) -> Piece:
        if self._trace is not None:
            if delivery.loads_at is not None:
                self._trace.loading(choice.request_id, delivery.loads_at)
            if delivery.outcome is not None:
                self._trace.admitted(choice.request_id, delivery.outcome, delivery.admitted_at)
        course = self._courses[choice.request_id]
        if delivery.outcome is not None:
            course.admitted = self._clock.now()
        deltas, scores, tokens = choice.take(delivery)
        first = self._time(choice, len(delivery.tokens))
        if first:
            course.first = choice.started
        if choice.reason is not None:
            if delivery.end is None:  # it ended here, by a stop string or its one call; the engine does not know yet
                self._answers.abort(choice.request_id)
            self._metrics.finished(choice.reason, empty=choice.spoken == 0)
            self._metrics.phases.ended(course, self._clock.now(), choice.prompt, choice.transcript.tokens)
            self._tell(choice, choice.reason)
            del self._by_id[choice.request_id]
            if self._trace is not None:
                self._trace.ended(choice.request_id, choice.reason)
            if self._ended is not None:
                self._ended(choice)
        return Piece(choice, deltas, scores, tokens, first, choice.finish)

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
