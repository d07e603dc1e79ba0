"""Requests of callers, and the events that answer them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Literal, NamedTuple, TypeAlias

from stepwell.base.geometry import Ints
from stepwell.cache.reuse.outcome import AdmissionOutcome

MAX_PRIORITY = 1000

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token, and when to stop.

    temperature 0 is greedy. `top_k` 0 and `top_p` 1 keep every token. Draw i of a request depends on (seed, i) alone,
    so a seeded answer is the same in any batch. `max_tokens` None: as many as the context has room for.

    min_p             tokens less likely than this share of the likeliest are left out
    *_penalty         repetition: of every token of prompt and answer; presence and frequency: of the answer's
    logit_bias        (token, what is added to its logit)
    logprobs          log-probabilities of each answer token and of this many most likely ones; None: of none
    prompt_logprobs   the same of every prompt token but the first; needs a request that does not read the cache
    allowed           nothing but these tokens is chosen; empty: any
    bad_words         token sequences that never become whole
    grammar           grammar of the answer, in the form that the runner understands; "" for none
    grammar_after     the grammar begins after this token of the answer; None: at once
    grammar_for       name of the caller: grammars of different callers are served by turns
    """

    max_tokens: int | None = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""
    grammar_after: int | None = None
    grammar_for: str = ""
    allowed: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    def ends(self, eos: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens that end an answer, where `eos` end one by default."""
        return self.stop_token_ids if self.ignore_eos else (*self.stop_token_ids, *eos)

    @property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def looks_back(self) -> bool:
        """True if the next token depends on earlier ones outside the model: penalties, a grammar, allowed or banned tokens."""
        return self.penalises or bool(self.grammar or self.allowed or self.bad_words)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt to be continued. Nothing in it changes while it is served.

    salt          isolates: prompts under different salts never share a byte
    read_cache    False: start cold, in every tier
    write_cache   False: leave nothing behind, in any tier
    session       a name shown by the dashboard; it has no effect
    priority      lower is served sooner, within ±MAX_PRIORITY; see `stepwell.sched.queues`
    places        positions at which similar prompts are likely to part; each costs a rung
    """

    id: str
    prompt: Ints
    params: SamplingParams = SamplingParams()
    salt: str = ""
    read_cache: bool = True
    write_cache: bool = True
    session: str | None = None
    priority: int = 0
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Loads:
    """The request waits for copies from a lower tier, since `at` by the engine's clock. Sent before `Admitted`, and again if a load was
    given up and another one begun."""

    request_id: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request began to run at `at` by the engine's clock. Sent once, before its first token."""

    request_id: str
    outcome: AdmissionOutcome
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """The log-probability of one token under the model alone, and the likeliest tokens at its position, as (token, log-probability)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Tokens(NamedTuple):
    """Newly sampled tokens, in order. A tuple for speed: there is one for each answer and step.

    scores         one for each token, where the request asks for them
    prompt_scores  of prompt tokens `prompt_from`, `prompt_from` + 1, …; after a preemption some come twice
    """

    request_id: str
    tokens: tuple[int, ...]
    scores: tuple[Scored, ...] = ()
    prompt_scores: tuple[Scored, ...] = ()
    prompt_from: int = 0

    @classmethod
    def each(cls, names: Iterable[str], tokens: Iterable[tuple[int, ...]]) -> Iterator[Tokens]:
        """One for each of `names`, without scores. Built without a Python call for each."""
        return map(partial(tuple.__new__, cls), zip(names, tokens, repeat(()), repeat(()), repeat(0), strict=False))


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request: sent exactly once.

    stop: an end-of-sequence or stop token (it is the last of `Tokens`); length: `max_tokens` or the context is full;
    abort: the caller asked; error: `message` says what went wrong.
    """

    request_id: str
    reason: FinishReason
    message: str = ""


Event: TypeAlias = Loads | Admitted | Tokens | Finished
