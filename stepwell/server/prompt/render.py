"""A conversation as the tokens of a prompt: rendered by the template, with what the model itself wrote as it wrote it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.engine.text.chat_template import ChatTemplate
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.parse.marks import CLOSE, OPEN
from stepwell.server.parse.reply import THINK, THOUGHT
from stepwell.server.prompt.dialect import PRESERVE, Dialect
from stepwell.server.prompt.heads import Heads
from stepwell.server.prompt.places import places
from stepwell.server.prompt.template_use import TemplateUse
from stepwell.server.prompt.template_wire import Job
from stepwell.server.prompt.written import Answers, Written
from stepwell.talk.conversation import Conversation
from stepwell.talk.guard import Guard
from stepwell.talk.history import Message

_Result = TypeVar("_Result")
_THOUGHTS = frozenset({THINK, THOUGHT})


@dataclass(frozen=True, slots=True)
class Rendered:
    """`text` is what `pieces` say in all; a piece that is plain has no marks in it, whatever it says."""

    text: str
    pieces: tuple[tuple[str, bool], ...]

    def head(self, mark: str) -> str:
        """Up to the second `mark`, with which every message begins; empty where there is none."""
        before, seen = "", 0
        for text, plain in self.pieces:
            at = -1
            while not plain and seen < 2 and (at := text.find(mark, at + 1)) >= 0:
                seen += 1
            if seen == 2:
                return before + text[:at]
            before += text
        return ""


@dataclass(frozen=True, slots=True)
class Renderer:
    """Renders conversations with one template.

    heads      what prompts begin with
    variables  what the template is told where a call says nothing
    plain      words of the vocabulary's own tokens are only text where they stand in contents
    answers    what the model wrote earlier
    """

    tokenizer: Tokenizer
    dialect: Dialect
    heads: Heads
    variables: Mapping[str, Any] = field(default_factory=dict)
    plain: bool = True
    answers: Answers = field(default_factory=Answers)

    @classmethod
    def of(cls, tokenizer: Tokenizer, use: TemplateUse) -> Renderer:
        """As the flags of a server say."""
        dialect = Dialect.of(tokenizer)
        own = {PRESERVE: True} if use.preserve and dialect.preserves else {}
        return cls(tokenizer, dialect, Heads(tokenizer), {**own, **use.variables}, use.plain)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        open_answer: bool = True,
        continue_last: bool = False,
    ) -> Generator[Job, str, Rendered]:
        """What the template has to render, one after the other; each is answered with its text. See `carried_out`."""
        guard = Guard(self.tokenizer.marks if self.plain else ())
        guarded = guard.messages(messages, _THOUGHTS)
        own = {i: written for i, m in enumerate(messages) if (written := self.answers.of(m)) is not None}
        told, shown = {**self.variables, **variables}, guard.value(list(tools))

        text = yield Job(
            [_stand_in(m, own[i], i, guard) if i in own else m for i, m in enumerate(guarded)],
            shown,
            told,
            open_answer,
            continue_last,
        )
        for i, written in own.items():
            put = _put_back(text, written, i, guard)
            if put is None:  # a template that writes calls otherwise
                text = yield Job(guarded, shown, told, open_answer, continue_last)
                break
            text = put
        return Rendered(guard.whole(text), tuple(guard.pieces(text)))

    def encode(self, rendered: Rendered) -> Ints:
        """Tokens, int32 [n]."""
        parts = [self.tokenizer.encode(text, special=False, plain=plain) for text, plain in rendered.pieces]
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else np.empty(0, np.int32)

    def places(
        self, ids: Ints, rendered: Rendered, talk: Conversation, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Where this prompt and others like it tend to part."""
        turn, led = self.dialect.turn, bool(tools) or talk.messages[0]["role"] == "system"
        if turn is None:
            return ()
        head = rendered.head(self.tokenizer.token_bytes(turn).decode()) if led else ""
        return places(ids, turn, led, self.heads.parts(head, tools, talk.leading) if head else ())


def carried_out(steps: Generator[Job, str, _Result], template: ChatTemplate) -> _Result:
    """The result of `steps`, their jobs rendered by `template` here and now. Raises RequestError where it refuses."""
    text = None
    while True:
        try:
            job = next(steps) if text is None else steps.send(text)
        except StopIteration as end:
            result: _Result = end.value
            return result
        text = job.rendered(template)


def _stand_in(message: Message, written: Written, i: int, guard: Guard) -> Message:
    """The message with words in it between which what was written belongs."""
    call = {"id": "", "type": "function", "function": {"name": f"{guard.nonce}n{i}n", "arguments": {}}}
    return {**message, "content": f"{guard.nonce}c{i}c" if written.before else "", "tool_calls": [call]}


def _put_back(text: str, written: Written, i: int, guard: Guard) -> str | None:
    """`text` with what was written in its place; None where that is not found."""
    name = text.find(f"{guard.nonce}n{i}n")
    begin = text.rfind(OPEN, 0, name) if name >= 0 else -1
    end = text.find(CLOSE, name) if name >= 0 else -1
    rest = written.rest if written.before else written.rest.lstrip()
    if written.before:
        word = f"{guard.nonce}c{i}c"
        begin = text.rfind(word, 0, begin) if begin >= 0 else -1
    if begin < 0 or end < 0:
        return None
    before: str = guard.value(written.before)
    # the marks around calls are the model's own; any other word for a token, in an argument, is text
    calls: str = guard.value(rest, (OPEN, CLOSE))
    return text[:begin] + before + calls + text[end + len(CLOSE) :]
