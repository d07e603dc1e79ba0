"""One generation call, from checked fields to pieces of visible text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from stepwell.base.clock import Clock
from stepwell.base.errors import RequestError
from stepwell.base.geometry import Ints
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.engine.detokenizer import Transcript
from stepwell.engine.tokenizer import Tokenizer
from stepwell.sched.request import FinishReason, Request, SamplingParams
from stepwell.server.answers import Answers, Delivery
from stepwell.server.client import EngineClient
from stepwell.server.errors import GenerationFailed
from stepwell.server.metrics import Metrics
from stepwell.server.schema import ChatCall, CompletionCall

_GREEDY_BELOW = 1e-5
_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Job:
    """A call, read and checked: `n` answers to each prompt.

    params   of every sequence, but for the seed (choice i draws from seed + i) and for `max_tokens`, which is cut to the room
             that the prompt leaves in a context of `context` tokens
    arrived  when the call came, in seconds of the server's clock
    """

    id: str
    prompts: tuple[Ints, ...]
    n: int
    params: SamplingParams
    context: int
    stops: tuple[str, ...]
    salt: str
    session: str | None
    read_cache: bool
    write_cache: bool
    arrived: float

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.n

    def requests(self) -> list[Request]:
        """One request for each choice, in the order of their indices."""
        return [self._request(i, prompt, choice) for i, (prompt, choice) in enumerate(self._choices())]

    def _choices(self) -> list[tuple[Ints, int]]:
        return [(prompt, choice) for prompt in self.prompts for choice in range(self.n)]

    def _request(self, index: int, prompt: Ints, choice: int) -> Request:
        room = self.context - len(prompt)
        wanted = self.params.max_tokens
        most = room if wanted is None else min(wanted, room)
        params = replace(
            self.params,
            max_tokens=most,
            min_tokens=min(self.params.min_tokens, most),
            seed=(self.params.seed + choice) % _SEEDS,
        )
        return Request(f"{self.id}-{index}", prompt, params, self.salt, self.read_cache, self.write_cache, self.session)


def sampling(call: CompletionCall | ChatCall, default_seed: int, stop_ids: Sequence[int]) -> SamplingParams:
    """How the call wants its tokens chosen. Raises RequestError where two fields contradict each other."""
    most = call.max_tokens
    if isinstance(call, ChatCall) and call.max_completion_tokens is not None:
        most = call.max_completion_tokens
    least = call.min_tokens or 0
    if most is not None and least > most:
        raise RequestError(f"min_tokens {least} is above max_tokens {most}: lower it", "min_tokens")
    temperature = 1.0 if call.temperature is None else call.temperature
    return SamplingParams(
        max_tokens=most,
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,  # dividing by less overflows float32
        top_p=1.0 if call.top_p is None else call.top_p,
        top_k=max(call.top_k or 0, 0),
        seed=default_seed if call.seed is None else call.seed,
        min_tokens=least,
        stop_token_ids=tuple(stop_ids),
        ignore_eos=call.ignore_eos,
    )


class Choice:
    """One sequence as its caller sees it."""

    __slots__ = ("index", "outcome", "prompt", "request_id", "shown", "started", "transcript")

    def __init__(self, index: int, request: Request, transcript: Transcript) -> None:
        self.index = index
        self.request_id = request.id
        self.prompt = len(request.prompt)
        self.transcript = transcript
        self.outcome: AdmissionOutcome | None = None
        self.started: float | None = None
        self.shown = 0

    @property
    def reason(self) -> FinishReason | None:
        return self.transcript.reason

    def take(self, delivery: Delivery) -> str:
        """Text that a delivery makes visible. Raises GenerationFailed where the engine gave up."""
        if self.outcome is None:
            self.outcome = delivery.outcome
        if delivery.end in ("error", "abort"):
            raise GenerationFailed(delivery.message or "the engine gave up this request: send it again")
        text = self.transcript.take(delivery.tokens, delivery.end)
        self.shown += len(text)
        return text


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of one choice; `reason` is set on its last piece. A first piece comes with the first token, text or not."""

    choice: Choice
    text: str
    first: bool
    reason: FinishReason | None


class Generation:
    """A job at work. Leaving the `with` block aborts whatever has not ended."""

    def __init__(self, job: Job, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._arrived = job.arrived
        self._n = job.n
        requests = job.requests()
        self.choices = [
            Choice(i, request, Transcript(tokenizer.decoder(request.prompt), job.stops, request.params.min_tokens))
            for i, request in enumerate(requests)
        ]
        self._by_id = {choice.request_id: choice for choice in self.choices}
        self._answers: Answers = client.submit(requests)

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
            self._by_id.popitem()
            self._metrics.finished(reason, empty=False)

    async def accepted(self) -> None:
        """Wait until the engine has taken every sequence. Raises RequestError, CapacityError or EngineDead."""
        await self._answers.accepted()

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Visible text as it appears, until every choice has ended. Raises GenerationFailed or EngineDead."""
        while self._by_id:
            deliveries = await self._answers.next()
            yield [self._piece(self._by_id[i], delivery) for i, delivery in deliveries.items() if i in self._by_id]

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage, with cached tokens by tier. A prompt with several choices counts once."""
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
            },
        }

    def _piece(self, choice: Choice, delivery: Delivery) -> Piece:
        text = choice.take(delivery)
        first = self._time(choice, len(delivery.tokens))
        if choice.reason is not None:
            if delivery.end is None:  # a stop string ended it here; the engine does not know yet
                self._answers.abort(choice.request_id)
            self._metrics.finished(choice.reason, empty=choice.shown == 0)
            del self._by_id[choice.request_id]
        return Piece(choice, text, first, choice.reason)

    def _time(self, choice: Choice, tokens: int) -> bool:
        """Keep the times of tokens; True with the first one."""
        if not tokens:
            return False
        now = self._clock.now()
        first = choice.started is None
        if choice.started is None:
            self._metrics.first_token(now - self._arrived)
        else:
            self._metrics.next_token((now - choice.started) / tokens)
        choice.started = now
        return first
