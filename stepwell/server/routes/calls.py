"""The routes that generate: a call is read, checked, run, and answered whole or in a stream."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from fastapi import Request, Response

from stepwell.base.errors import RequestError, StepwellError
from stepwell.sched.request import SamplingParams
from stepwell.server.generation.choice import Choice
from stepwell.server.generation.generate import CheckedCall, Generation
from stepwell.server.generation.look_ahead import LookAhead, Turn
from stepwell.server.http.errors import GenerationFailed, any_problem, queue_full
from stepwell.server.http.gate import caller_of
from stepwell.server.http.parts import Parts
from stepwell.server.http.streams import EventStream, while_connected
from stepwell.server.observe.trace import trace_of
from stepwell.server.parse.reply import Reading
from stepwell.server.parse.signatures import Signatures
from stepwell.server.prompt.prompts import Prompt, PromptReader
from stepwell.server.read import schema
from stepwell.server.read.choosing import limited, sampling
from stepwell.server.read.reading import CallReader
from stepwell.server.read.structure import structure, with_grammar
from stepwell.server.read.tools import Tool, read_use
from stepwell.server.routes.outlook import asks_for_outlook, outlooks
from stepwell.server.write.form import Form
from stepwell.server.write.formats import ChoicesForm, Shape

log = logging.getLogger("stepwell.server")

_SESSION_HEADERS = ("x-session-id", "x-session-affinity")
_MAX_STOP_IDS = 256


@dataclass(frozen=True, slots=True)
class Wish:
    """A call that has been read: its prompts, how tokens are to be chosen, how the answer is to be read.

    session  a name that counts where neither the call nor a header gives one
    """

    call: schema.CompletionCall | schema.ChatCall
    prompts: tuple[Prompt, ...]
    arrived: float
    params: SamplingParams
    reading: Reading = field(default_factory=Reading)
    echo: bool = False
    session: str | None = None
    tools: tuple[Tool, ...] = ()


class GenerationRoutes:
    """One method a route, and the way that all calls take from their fields to their answer."""

    def __init__(self, parts: Parts, calls: CallReader, prompts: PromptReader) -> None:
        self._parts = parts
        self._calls = calls
        self._dialect = prompts.dialect
        self._prompts = prompts
        self._ahead = LookAhead(parts.client, prompts) if parts.template.look_ahead else None

    async def completions(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = await self._calls.read(schema.CompletionCall, request)
        prompts = await self._prompts.completion(call.prompt, call.add_special_tokens)
        if call.max_tokens == 0 and not call.echo and call.prompt_logprobs is None:
            raise RequestError("max_tokens 0 gives nothing without echo or prompt_logprobs", "max_tokens")
        owner = caller_of(request).owner
        params = with_grammar(self._params(call), await structure(call, self._parts.grammars, owner), owner)
        return await self._choices(request, Wish(call, tuple(prompts), arrived, params, echo=call.echo))

    async def chat_completions(self, request: Request) -> Response:
        arrived = self._parts.clock.now()
        call = await self._calls.read(schema.ChatCall, request)
        return await self._choices(request, await self.chat(call, arrived, caller_of(request).owner))

    async def chat(self, call: schema.ChatCall, arrived: float, owner: str) -> Wish:
        """A chat of `owner`, read and checked. Raises RequestError."""
        use = read_use(call)
        prompt = await self._prompts.chat(call, use.shown)
        grammar = await structure(call, self._parts.grammars, owner, use, self._dialect)
        params = with_grammar(self._params(call), grammar, owner, self._dialect.after(prompt.start))
        if use.shown and not use.allowed and self._dialect.opening_of_call is not None:
            params = replace(params, logit_bias=(*params.logit_bias, (self._dialect.opening_of_call, float("-inf"))))
        reading = Reading(signatures=Signatures.of(use.shown) if use.allowed else None, several=use.several)
        reading = replace(reading, end_of_thought=self._dialect.end_of_thought)
        return Wish(call, (prompt,), arrived, params, reading, tools=use.shown)

    def _params(self, call: schema.CompletionCall | schema.ChatCall) -> SamplingParams:
        stop_ids = self._prompts.ids(call.stop_token_ids or [], "stop_token_ids").tolist()
        if len(stop_ids) > _MAX_STOP_IDS:
            raise RequestError(f"stop_token_ids holds more than {_MAX_STOP_IDS} ids", "stop_token_ids")
        params = sampling(call, secrets.randbits(63), stop_ids, self._parts.facts.vocab_size, self._parts.defaults)
        if call.best_of not in (None, 1, call.n):
            raise RequestError(f"best_of must be n, not {call.best_of}: answers are not ranked", "best_of")
        if call.allowed_token_ids is None and not call.bad_words:
            return params
        if call.allowed_token_ids == []:
            raise RequestError("allowed_token_ids is empty: name at least one token", "allowed_token_ids")
        allowed = self._prompts.ids(call.allowed_token_ids or [], "allowed_token_ids").tolist()
        return limited(params, allowed, call.bad_words or [], self._parts.tokenizer)

    async def _choices(self, request: Request, wish: Wish) -> Response:
        """Answer in the form of completions and chats."""
        call = wish.call
        chat = isinstance(call, schema.ChatCall)
        shape = Shape(
            f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            self._parts.facts.model,
            int(time.time()),
            chat,
            self._parts.tokenizer,
            scored=wish.params.logprobs is not None,
            prompt_scored=call.prompt_logprobs is not None,
            with_ids=call.return_token_ids,
        )
        options = call.stream_options
        sequences = len(wish.prompts) * (call.n or 1)
        form = ChoicesForm(shape, sequences, options is not None and options.include_usage)
        return await self.answer(request, wish, shape.id, form)

    async def answer(self, request: Request, wish: Wish, name: str, form: Form) -> Response:
        """Generate, and answer in `form`; `name` is the answer's id. Raises StepwellError where no stream has begun. A call with the header
        `x-stepwell-outlook` generates nothing: see `stepwell.server.routes.outlook`."""
        job = self._job(request, wish, name)
        self._check_room(job)
        if asks_for_outlook(request):
            return await outlooks(request, job, self._parts.client)
        parts, trace = self._parts, trace_of(request)
        generation = Generation(
            job, parts.client, parts.tokenizer, parts.metrics, parts.clock, trace, lambda c: self._ended(wish, job, c)
        )
        try:
            await while_connected(request.receive, generation.accepted())
            if not wish.call.stream:
                body = await while_connected(request.receive, _whole(generation, form))
                return Response(body, 200, _headers(generation, job.id), "application/json")
        except BaseException as error:
            generation.close("error" if isinstance(error, GenerationFailed) else "abort")
            raise
        return EventStream(self._events(generation, form), generation.close, _headers(generation, job.id), form.beat)

    def _ended(self, wish: Wish, job: CheckedCall, choice: Choice) -> None:
        """Remember what later turns need of an answer, and prepare the next one."""
        call = wish.call
        if (written := choice.written()) is not None:
            self._prompts.renderer.answers.keep(written)
        if self._ahead is None or not isinstance(call, schema.ChatCall) or job.n > 1 or not job.write_cache:
            return
        if choice.finish == "stop" and job.read_cache and not call.continue_final_message:
            self._ahead.consider(Turn(call, wish.tools, choice.answer.message(), [choice.held()], job.salt))

    async def _events(self, generation: Generation, form: Form) -> AsyncIterator[bytes]:
        try:
            for event in form.begin():
                yield event
            while generation.open:
                events = [event for piece in await generation.pieces() for event in form.events(piece)]
                if events:
                    yield b"".join(events)  # what came at once goes out at once
            for event in form.end(generation):
                yield event
        except Exception as error:  # whatever went wrong, a stream that has begun ends as its API says
            problem = any_problem(error)
            if not isinstance(error, StepwellError):
                log.exception("a stream has ended by a fault inside the server")
            self._parts.metrics.refused(problem.status)
            generation.close("error")
            for event in form.fail(problem):
                yield event

    def _job(self, request: Request, wish: Wish, name: str) -> CheckedCall:
        call = wish.call
        if call.stream_options is not None and not call.stream:
            raise RequestError("stream_options needs stream: true", "stream_options")
        return CheckedCall(
            id=name,
            prompts=wish.prompts,
            n=call.n or 1,
            params=wish.params,
            context=self._parts.facts.max_model_len,
            stops=schema.read_stops(call.stop),
            salt=caller_of(request).salted(call.cache_salt),
            session=_session(request, call.session_id) or wish.session,
            read_cache=call.read_cache,
            write_cache=call.write_cache,
            arrived=wish.arrived,
            reading=wish.reading,
            echo=wish.echo,
            priority=call.priority or 0,
            keep_stop=call.include_stop_str_in_output,
            show_special=not call.skip_special_tokens,
        )

    def _check_room(self, job: CheckedCall) -> None:
        """Refuse what would make the queue too long."""
        limit = self._parts.limits.queue
        if job.sequences > limit:
            raise RequestError(
                f"this call asks for {job.sequences} sequences: at most {limit} are queued (--max-queue)", "n"
            )
        if self._parts.client.waiting + job.sequences > limit:
            raise queue_full(self._parts.client.waiting, limit, self._parts.client.retry_after())


async def _whole(generation: Generation, form: Form) -> bytes:
    while generation.open:
        for piece in await generation.pieces():
            form.add(piece)
    return form.whole(generation)


def _headers(generation: Generation, request_id: str) -> dict[str, str]:
    """The request's id, and how its prompt was resumed if that is known by now."""
    resume = generation.resume()
    return {"x-request-id": request_id} | ({} if resume is None else {"x-stepwell-resume": resume})


def _session(request: Request, named: str | None) -> str | None:
    """The session a call belongs to, from its body or from a header."""
    for name in _SESSION_HEADERS:
        named = named or request.headers.get(name)
    if named is not None and len(named) > schema.MAX_NAME:
        raise RequestError(f"the session id is longer than {schema.MAX_NAME} characters", "session_id")
    return named or None
