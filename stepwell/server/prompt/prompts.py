"""Prompts and messages as callers write them, turned into tokens and checked before anything is reserved for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from stepwell.base.errors import RequestError
from stepwell.base.geometry import Ints
from stepwell.engine.config import EngineFacts
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.errors import PromptTooLong
from stepwell.server.parse.reply import ReplyStart
from stepwell.server.prompt.beside import Beside
from stepwell.server.prompt.dialect import Dialect
from stepwell.server.prompt.render import Renderer
from stepwell.server.prompt.template_wire import Job
from stepwell.server.prompt.templates import Templates
from stepwell.server.read.hosted import LeftOut
from stepwell.server.read.schema import ChatCall, TokenizeCall
from stepwell.server.read.tools import Tool, read_tools
from stepwell.talk.conversation import conversation

MAX_PROMPTS = 1024

log = logging.getLogger("stepwell.server")


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A prompt: tokens, int32 [n]; the text that they were made of (None: they came as ids); how the answer begins, and where prompts
    like it tend to part."""

    ids: Ints
    text: str | None = None
    start: ReplyStart = ReplyStart.SPEAKING
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Knows the model's vocabulary, context and template; checks prompts against them."""

    tokenizer: Tokenizer
    facts: EngineFacts
    renderer: Renderer
    templates: Templates
    beside: Beside = field(default_factory=Beside)
    left_out: LeftOut = field(default_factory=lambda: LeftOut("parts of messages", "this model reads text alone"))

    @property
    def dialect(self) -> Dialect:
        return self.renderer.dialect

    async def completion(self, value: object, special: bool = True) -> list[Prompt]:
        """Prompts of a completion: text, token ids, or a list of either. Raises RequestError.

        special  texts get the model's own leading or closing tokens
        """
        items = _split(value)
        return await self.beside.run(sum(map(len, items)), lambda: [self._read(item, special) for item in items])

    async def chat(self, call: ChatCall, tools: Sequence[Tool]) -> Prompt:
        """The prompt of a conversation. Raises RequestError."""
        return await self._conversation(call, call.messages, tools, self.facts.max_model_len - 1)

    async def ahead(self, call: ChatCall, tools: Sequence[Tool], message: Mapping[str, Any]) -> Prompt | None:
        """The beginning of the next prompt, up to the next user message, once `message` has answered `call`. None if it cannot be known."""
        turn = self.dialect.turn
        if turn is None:
            return None
        given = [*call.messages, message, {"role": "user", "content": "…"}]
        prompt = await self._conversation(call, given, tools, self.facts.max_model_len - 1)
        starts = np.flatnonzero(prompt.ids == turn)
        if len(starts) < 3:
            return None
        ids = prompt.ids[: int(starts[-2])]  # behind it come the user's words, then the header of an answer
        return replace(prompt, ids=ids, places=tuple(place for place in prompt.places if place < len(ids)))

    async def tokenize(self, call: TokenizeCall) -> Ints:
        """What a prompt or a conversation would become, of any length. Raises RequestError."""
        if call.messages is not None:
            return (await self._conversation(call, call.messages, read_tools(call.tools), None)).ids
        text = call.prompt or ""
        return await self.beside.run(len(text), lambda: self.tokenizer.encode(text, special=call.add_special_tokens))

    async def _conversation(
        self, call: ChatCall | TokenizeCall, given: Sequence[Mapping[str, Any]], tools: Sequence[Tool], most: int | None
    ) -> Prompt:
        if tools and not self.dialect.knows_tools:
            raise RequestError("this model's chat template knows no tools: leave them out", "tools")
        steps = self._render(call, given, tools, most)
        done = await self.beside.run(call.size, partial(_went_on, steps, None))
        while isinstance(done, Job):
            text = await self.templates.render(done, call.size)
            done = await self.beside.run(call.size, partial(_went_on, steps, text))
        return done

    def _render(
        self, call: ChatCall | TokenizeCall, given: Sequence[Mapping[str, Any]], tools: Sequence[Tool], most: int | None
    ) -> Generator[Job, str, Prompt]:
        """Everything but the template's own part, which is yielded. `most`: tokens that the prompt may have."""
        continued = call.continue_final_message
        talk = conversation(given, self.dialect.manners)
        for kind in talk.left_out:
            self.left_out.note(kind)
        rendered = yield from self.renderer.render(
            talk.messages,
            tools,
            {**self.dialect.variables(call.reasoning_effort), **(call.chat_template_kwargs or {})},
            open_answer=call.add_generation_prompt and not continued,
            continue_last=continued,
        )
        ids = self._encoded("messages", rendered.text, lambda: self.renderer.encode(rendered), most)
        start = self.dialect.start(rendered.text, continued)
        return Prompt(ids, rendered.text, start, self.renderer.places(ids, rendered, talk, tools))

    def ids(self, value: Sequence[object], field: str) -> Ints:
        """Token ids of this vocabulary as int32. Raises RequestError."""
        # a prompt of 100,000 ids is looked at in a few milliseconds, by loops that are not Python's
        if not set(map(type, value)) <= {int}:
            wrong = next(i for i in value if type(i) is not int)
            raise RequestError(f"{field} must hold integers only, not {str(wrong)[:40]!r}", field)
        try:
            ids = np.array(value, np.int64)
            ends = (int(ids.min(initial=0)), int(ids.max(initial=0)))
        except OverflowError:
            ends = (min(value), max(value))  # type: ignore[type-var, assignment]
        for i in ends:
            if not 0 <= i < self.facts.vocab_size:
                raise RequestError(f"token id {i} in {field} is outside 0 … {self.facts.vocab_size - 1}", field)
        return ids.astype(np.int32)

    def _read(self, item: str | list[object], special: bool) -> Prompt:
        if isinstance(item, str):
            most = self.facts.max_model_len - 1
            return Prompt(self._encoded("prompt", item, lambda: self.tokenizer.encode(item, special), most), item)
        ids = self.ids(item, "prompt")
        self._check_length(len(ids), "prompt", self.facts.max_model_len - 1)
        return Prompt(ids)

    def _encoded(self, field: str, text: str, encode: Callable[[], Ints], most: int | None) -> Ints:
        """Tokens of `text`, which is not even looked at where it cannot be short enough. Raises RequestError."""
        if most is None:
            return encode()
        if (fewest := self.tokenizer.fewest(text)) > most:
            raise PromptTooLong(field, fewest, self.facts.max_model_len)
        ids = encode()
        self._check_length(len(ids), field, most)
        return ids

    def _check_length(self, tokens: int, field: str, most: int) -> None:
        if tokens == 0:
            raise RequestError(f"{field} is empty: give at least one token", field)
        if tokens > most:
            raise PromptTooLong(field, tokens, self.facts.max_model_len)


def _went_on(steps: Generator[Job, str, Prompt], text: str | None) -> Job | Prompt:
    """What the template has to render next, or the prompt, once the last job has come to `text`."""
    try:
        return next(steps) if text is None else steps.send(text)
    except StopIteration as end:  # no exception of this kind may leave a thread
        prompt: Prompt = end.value
        return prompt


def _split(value: object) -> list[str | list[object]]:
    """One prompt or many, as a list of texts and lists of ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise RequestError(
            f"prompt must be a string, token ids or a list of either, not {type(value).__name__}", "prompt"
        )
    if not value:
        raise RequestError("prompt is empty: give at least one token", "prompt")
    kinds = set(map(type, value))
    if not kinds & {str, list}:
        return [value]
    if not kinds <= {str, list}:
        raise RequestError("prompt mixes prompts and token ids: give a list of strings or lists of ids", "prompt")
    if len(value) > MAX_PROMPTS:
        raise RequestError(f"prompt holds {len(value):,} prompts: send at most {MAX_PROMPTS:,} at once", "prompt")
    return value
