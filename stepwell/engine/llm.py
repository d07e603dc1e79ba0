"""`stepwell.LLM`: the engine in this process, without a server.

with LLM("path/to/checkpoint", device_memory="2GiB") as llm:
    print(llm.generate("Once upon a time", SamplingParams(max_tokens=32))[0].text)
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stepwell.base.errors import EngineDead, RequestError, StepwellError
from stepwell.base.geometry import Ints
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.config import EngineFacts, engine_config
from stepwell.engine.hub import local_model
from stepwell.engine.interrupt import whole
from stepwell.engine.process.serving import ServedLoop, build
from stepwell.engine.text.detokenizer import Transcript
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import Admitted, Event, Finished, FinishReason, Request, SamplingParams, Scored, Tokens
from stepwell.sched.retention import Prefetched, Subject
from stepwell.sched.stats import EngineStats

log = logging.getLogger("stepwell.engine")

Prompt: TypeAlias = str | Sequence[int] | Ints

_DEFAULTS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer; `token_ids` include the token that ended it.

    finish_reason, error        "error" where the engine could not go on with this one, and why; what came before stays
    admitted                    how its prompt was resumed; None where it failed before
    logprobs, prompt_logprobs   one for each token, and for each prompt token but the first, where the params ask for them
    """

    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    admitted: AdmissionOutcome | None
    logprobs: tuple[Scored, ...] = ()
    prompt_logprobs: tuple[Scored, ...] = ()
    error: str = ""

    @property
    def outcome(self) -> AdmissionOutcome:
        """How its prompt was resumed. Raises StepwellError where it failed before."""
        if self.admitted is None:
            raise StepwellError(self.error)
        return self.admitted


class LocalEngine:
    """An engine loop to call, with a tokenizer. Not for several threads at once. Close it, or use it in a `with` block."""

    def __init__(self, loop: ServedLoop, tokenizer: Tokenizer, facts: EngineFacts) -> None:
        self._loop: ServedLoop | None = loop
        self._served = 0
        self.tokenizer = tokenizer
        self.facts = facts
        ends = facts.ends.with_template(tokenizer.turn_end()).tokens
        self._ends = tuple(token for token in ends if token not in facts.ends.tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, patience: float = 30.0) -> None:
        """Write to disk what is worth it, for at most `patience` seconds, and release the engine. May be called twice."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.end(patience)

    def stats(self) -> EngineStats:
        """One look at queues, tiers and counters."""
        return self._open_loop().stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = _DEFAULTS,
        *,
        stop: str | Sequence[str] = (),
        salt: str = "",
        read_cache: bool = True,
        write_cache: bool = True,
        session: str | None = None,
        progress: bool = False,
    ) -> list[Completion]:
        """Continue one prompt or many, text or token ids; one completion each, in order.

        params       for all prompts, or one for each
        stop         strings that end an answer; they are not part of it
        session      a name for the conversation, for whoever looks at the engine: it decides nothing
        progress     show a bar on the terminal
        A completion whose `finish_reason` is "error" has failed by itself: the others are whole.
        Raises RequestError or CapacityError, before anything runs, if a prompt cannot be served.
        """
        ids = [self._encode(prompt) for prompt in _as_list(prompts)]
        each = [params] * len(ids) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(ids):
            raise RequestError(f"{len(ids)} prompts but {len(each)} params: give one for all or one for each", "params")
        nothing = np.empty(0, np.int32)
        template = Request("", nothing, SamplingParams(), salt, read_cache, write_cache, session)
        requests = []
        for prompt, chosen in zip(ids, each, strict=True):
            self._served += 1
            read = read_cache and chosen.prompt_logprobs is None  # what is not computed has no log-probability
            name = f"llm-{self._served}"
            requests.append(replace(template, id=name, prompt=prompt, params=self._ending(chosen), read_cache=read))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return self._run(requests, stops, progress)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams = _DEFAULTS,
        **options: Any,
    ) -> Completion:
        """The next answer in a conversation, by the model's own chat template. `options` as for `generate`."""
        return self.generate(self.tokenizer.encode_chat(messages), params, **options)[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams = _DEFAULTS, *, stop: str | Sequence[str] = (), salt: str = ""
    ) -> Generator[str, None, Completion]:
        """The text that continues one prompt, as it appears; the generator returns the completion. Closing it ends the answer.

        Raises RequestError or CapacityError, before anything runs, if the prompt cannot be served, and StepwellError where the engine
        cannot go on with it.
        """
        loop = self._open_loop()
        self._served += 1
        request = Request(f"llm-{self._served}", self._encode(prompt), self._ending(params), salt)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        answer = _Answer(request, Transcript(self.tokenizer.decoder(request.prompt), stops))
        loop.submit(request)
        try:
            while answer.reason is None:
                with whole():
                    self._turn(loop, {request.id: answer})
                if text := answer.unheard():
                    yield text
            if answer.error:
                raise StepwellError(answer.error)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StepwellError):
                self._give_up(loop)
            else:
                self._sweep(loop, {request.id: answer})
            raise
        self._sweep(loop, {request.id: answer})
        return answer.completion()

    def pin(self, prompt: Prompt, seconds: float, *, salt: str = "") -> int:
        """Keep what is cached of a prompt before all else for so long; how many of its tokens."""
        loop, subject = self._open_loop(), Subject(salt, self._encode(prompt))
        loop.pin(subject, seconds)
        while loop.serving:  # the disk is asked for all of it
            with whole():
                loop.step()
        return loop.pin(subject, seconds) or 0

    def unpin(self, prompt: Prompt, *, salt: str = "") -> int:
        """End such a keep; how many tokens it kept."""
        return self._open_loop().unpin(Subject(salt, self._encode(prompt)))

    def prefetch(self, prompt: Prompt, *, salt: str = "") -> Prefetched:
        """Bring what is cached of a prompt to the device; comes back once it is there, or will not be."""
        loop = self._open_loop()
        loop.prefetch(1, Subject(salt, self._encode(prompt)))
        while not (done := loop.prefetched()):
            with whole():
                loop.step()
        return done[0]

    def _open_loop(self) -> ServedLoop:
        if self._loop is None:
            raise EngineDead("this LLM is closed: make a new one")
        return self._loop

    def _run(self, requests: Sequence[Request], stops: tuple[str, ...], progress: bool) -> list[Completion]:
        loop = self._open_loop()
        answers = {r.id: _Answer(r, Transcript(self.tokenizer.decoder(r.prompt), stops)) for r in requests}
        try:
            for request in requests:
                loop.submit(request)
            with _bar(len(requests), progress) as bar, whole() as may_leave:
                task, left = bar.add_task("generate", total=len(requests)), len(requests)
                while left:
                    self._turn(loop, answers)
                    may_leave()
                    ended = left - sum(answer.reason is None for answer in answers.values())
                    if ended:
                        bar.advance(task, ended)
                        left -= ended
        except (StepwellError, KeyboardInterrupt):
            self._sweep(loop, answers)
            raise
        except Exception:
            self._give_up(loop)
            raise
        self._sweep(loop, answers)
        failed = [answer.error for answer in answers.values() if answer.error]
        if failed:
            log.warning("%d of %d prompts have failed, the first one: %s", len(failed), len(answers), failed[0])
        return [answer.completion() for answer in answers.values()]

    def _turn(self, loop: ServedLoop, answers: Mapping[str, _Answer]) -> None:
        """One step of the engine; each answer takes what is its own."""
        mine: dict[str, list[Event]] = {}
        for event in loop.step():
            mine.setdefault(event.request_id, []).append(event)
        for request_id, told in mine.items():
            answer = answers.get(request_id)
            if answer is not None and answer.reason is None and answer.take(told):
                loop.abort(request_id)

    def _sweep(self, loop: ServedLoop, answers: Mapping[str, _Answer]) -> None:
        """Leave nothing running, whatever ended the run. What is to be written to disk can wait for the next one, or the end."""
        for request_id, answer in answers.items():
            if answer.reason is None:
                loop.abort(request_id)
        while loop.serving:
            with whole():
                loop.step()

    def _give_up(self, loop: ServedLoop) -> None:
        """Let go of a loop that has raised: it is in no known state."""
        self._loop = None
        with suppress(Exception):
            loop.end(0.0)

    def _ending(self, params: SamplingParams) -> SamplingParams:
        """The same, ending also where the chat template ends a turn."""
        return params if params.ignore_eos else replace(params, stop_token_ids=(*params.stop_token_ids, *self._ends))

    def _encode(self, prompt: Prompt) -> Ints:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        else:
            ids = np.asarray(prompt, dtype=np.int64)
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.facts.vocab_size:
                raise RequestError(f"token ids must be 0 … {self.facts.vocab_size - 1}", "prompt")
        if ids.size == 0:
            raise RequestError("prompt is empty: give at least one token", "prompt")
        if ids.size >= self.facts.max_model_len:
            raise RequestError(
                f"prompt has {ids.size:,} tokens; at most {self.facts.max_model_len - 1:,} leave room for an answer",
                "prompt",
            )
        return ids.astype(np.int32)


class LLM(LocalEngine):
    """The engine for one checkpoint, in this process."""

    def __init__(self, model: str, **flags: Any) -> None:
        """Build an engine for the checkpoint in directory `model`, or for one of the Hub by its name.

        flags  the fields of EngineConfig; sizes may be text

        Raises ConfigError where a flag or the checkpoint cannot work. What nobody closes is closed as Python ends.
        """
        from stepwell.engine.build import build_engine

        config = engine_config({"served_model_name": model, "model": local_model(model), **flags})
        tokenizer = Tokenizer.load(config.model)
        loop, facts = build(build_engine, config)
        for doubt in facts.doubts:
            log.warning("%s", doubt)
        super().__init__(loop, tokenizer, facts)
        atexit.register(self.close)  # whoever forgets it keeps the cache, and no thread meets a dying interpreter

    def close(self, patience: float = 30.0) -> None:
        atexit.unregister(self.close)
        super().close(patience)


class _Answer:
    """One completion as it grows."""

    __slots__ = ("_heard", "_of_prompt", "_outcome", "_parts", "_request", "_scores", "_tokens", "_transcript", "error")

    def __init__(self, request: Request, transcript: Transcript) -> None:
        self._request = request
        self._transcript = transcript
        self._parts: list[str] = []
        self._heard = 0
        self._tokens: list[int] = []
        self._scores: list[Scored] = []
        self._of_prompt: list[Scored] = []
        self._outcome: AdmissionOutcome | None = None
        self.error = ""

    @property
    def reason(self) -> FinishReason | None:
        return self._transcript.reason

    def take(self, events: Sequence[Event]) -> bool:
        """Take one step's events; True where a stop string has ended the answer before the engine did."""
        tokens: list[int] = []
        end: FinishReason | None = None
        for event in events:
            match event:
                case Admitted(_, outcome):
                    self._outcome = self._outcome or outcome
                case Tokens(_, new, scores, of_prompt, first):
                    tokens += new
                    self._scores += scores
                    self._of_prompt += of_prompt[1 + len(self._of_prompt) - first :]
                case Finished(_, "error" | "abort", message):
                    end, self.error = "error", message or "the engine gave up this request"
                case Finished(_, reason, _):
                    end = reason
        before = self._transcript.tokens
        self._parts.append(self._transcript.take(tokens, end))
        self._tokens += tokens[: self._transcript.tokens - before]
        return self.reason is not None and end is None

    def unheard(self) -> str:
        """Text since the last call."""
        text = "".join(self._parts[self._heard :])
        self._heard = len(self._parts)
        return text

    def completion(self) -> Completion:
        assert self.reason is not None and (self.error or self._outcome is not None)
        text = "".join(self._parts)
        tokens = tuple(self._tokens)
        scores = tuple(self._scores[: len(tokens)])
        told = text, self.reason, self._outcome, scores, tuple(self._of_prompt), self.error
        return Completion(len(self._request.prompt), tokens, *told)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many: token ids alone are one prompt."""
    if isinstance(prompts, str | np.ndarray):
        return [prompts]
    many: list[Prompt] = []
    ids: list[int] = []
    for item in prompts:
        if isinstance(item, int | np.integer):
            ids.append(int(item))
        else:
            many.append(item)
    if ids and many:
        raise RequestError("prompts mix token ids and prompts: give lists of ids, or one list of ids", "prompts")
    return [ids] if ids else many


def _bar(total: int, shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not shown, transient=True)
