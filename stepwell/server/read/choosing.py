"""How a call wants its tokens chosen, as the engine's own parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepwell.base.errors import RequestError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import SamplingParams
from stepwell.server.read.defaults import SamplingDefaults
from stepwell.server.read.schema import MAX_BIASES, ChatCall, CompletionCall

MAX_BAD_WORDS = 256
_GREEDY_BELOW = 1e-5


def sampling(
    call: CompletionCall | ChatCall, default_seed: int, stop_ids: Sequence[int], vocab: int, defaults: SamplingDefaults
) -> SamplingParams:
    """The call's parameters, without a grammar. Raises RequestError where two fields contradict each other."""
    most = defaults.max_tokens if call.max_tokens is None else call.max_tokens
    if isinstance(call, ChatCall) and call.max_completion_tokens is not None:
        most = call.max_completion_tokens
    least = call.min_tokens or 0
    if most is not None and least > most:
        raise RequestError(f"min_tokens {least} is above max_tokens {most}: lower it", "min_tokens")
    temperature = _or(call.temperature, defaults.temperature)
    return SamplingParams(
        max_tokens=most,
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,  # dividing by less overflows float32
        top_p=_or(call.top_p, defaults.top_p),
        top_k=max(defaults.top_k if call.top_k is None else call.top_k, 0),
        seed=default_seed if call.seed is None else call.seed,
        min_tokens=least,
        stop_token_ids=(*stop_ids, *(() if call.ignore_eos else defaults.ends)),
        ignore_eos=call.ignore_eos,
        min_p=_or(call.min_p, defaults.min_p),
        presence_penalty=_or(call.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_or(call.frequency_penalty, defaults.frequency_penalty),
        repetition_penalty=_or(call.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_bias(call.logit_bias or {}, vocab),
        logprobs=_logprobs(call),
        prompt_logprobs=_prompt_logprobs(call),
    )


def limited(
    params: SamplingParams, allowed: Sequence[int], bad_words: Sequence[str], tokenizer: Tokenizer
) -> SamplingParams:
    """The same, choosing among the tokens of `allowed` alone and never completing a word of `bad_words`. Raises RequestError."""
    if len(bad_words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words holds {len(bad_words):,} words: at most {MAX_BAD_WORDS}", "bad_words")
    # a word stands at the beginning or behind a space, which most vocabularies write as another token
    written = [form for word in bad_words for form in (word, f" {word.lstrip()}")]
    tokens = [tuple(tokenizer.encode(form, special=False).tolist()) for form in written]
    return replace(params, allowed=tuple(allowed), bad_words=tuple(dict.fromkeys(word for word in tokens if word)))


def _or(said: float | None, default: float) -> float:
    return default if said is None else said


def _bias(value: dict[str, float], vocab: int) -> tuple[tuple[int, float], ...]:
    if len(value) > MAX_BIASES:
        raise RequestError(f"logit_bias holds {len(value):,} tokens: at most {MAX_BIASES:,}", "logit_bias")
    for name in value:
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < vocab):
            raise RequestError(f"logit_bias names token {name[:40]!r}: use ids of 0 … {vocab - 1}", "logit_bias")
    return tuple((int(name), bias) for name, bias in value.items())


def _logprobs(call: CompletionCall | ChatCall) -> int | None:
    if isinstance(call, CompletionCall):
        return call.logprobs
    if call.top_logprobs and not call.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    return (call.top_logprobs or 0) if call.logprobs else None


def _prompt_logprobs(call: CompletionCall | ChatCall) -> int | None:
    """Number of likeliest tokens to report at each prompt token. None: no log-probabilities of the prompt."""
    if call.prompt_logprobs is not None:
        if call.stream:
            raise RequestError("prompt_logprobs cannot be streamed: use stream: false", "prompt_logprobs")
        return max(call.prompt_logprobs, (call.logprobs or 0) if isinstance(call, CompletionCall) and call.echo else 0)
    return call.logprobs if isinstance(call, CompletionCall) and call.echo else None
