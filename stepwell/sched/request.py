"""What a caller asks for, and what it hears back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepwell.base.geometry import Ints
from stepwell.cache.outcome import AdmissionOutcome

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token, and when to stop.

    temperature 0 is greedy. `top_k` 0 and `top_p` 1 keep every token. Draw i of a request depends on (seed, i) alone,
    so a seeded answer is the same in any batch. `max_tokens` None: as many as the context has room for.
    """

    max_tokens: int | None = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued. Nothing in it changes while it is served.

    salt          isolates: prompts under different salts never share a byte
    read_cache    False: start cold, in every tier
    write_cache   False: leave nothing behind, in any tier
    session       a hint for retention; never for correctness
    """

    id: str
    prompt: Ints
    params: SamplingParams = SamplingParams()
    salt: str = ""
    read_cache: bool = True
    write_cache: bool = True
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request has been given its start: sent once, before its first token."""

    request_id: str
    outcome: AdmissionOutcome


@dataclass(frozen=True, slots=True)
class Tokens:
    """Newly sampled tokens, in order."""

    request_id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request: sent exactly once.

    stop: an end-of-sequence or stop token (it is the last of `Tokens`); length: `max_tokens` or the context is full;
    abort: the caller asked; error: `message` says what went wrong.
    """

    request_id: str
    reason: FinishReason
    message: str = ""


Event: TypeAlias = Admitted | Tokens | Finished
