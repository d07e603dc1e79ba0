"""How one model writes thoughts and calls of tools, and what its chat template takes: read off the template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.parse.marks import OPEN
from stepwell.server.parse.reply import THINK, THOUGHT, ReplyStart
from stepwell.server.read.grammar import CallForm
from stepwell.talk.order import Manners

_EFFORT = "reasoning_effort"
_NEAREST = {"minimal": ("low",), "xhigh": ("max", "high"), "max": ("xhigh", "high")}
PRESERVE = "preserve_thinking"
"""What templates call it to keep the thoughts of earlier turns."""
_SYSTEM, _USER = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
_ANYWHERE, _ALONE = [_SYSTEM, _SYSTEM, _USER, _SYSTEM, _USER], [_SYSTEM]
PROBES = _ANYWHERE, _ALONE, [_USER]
"""Conversations that are rendered to know a template, in the server itself: where one takes too long, nobody may get as far."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the server has to know of a template.

    thinks       answers may hold thoughts
    knows_tools  the template shows tools to the model
    form         how calls are written
    end_of_thought, opening_of_call   the tokens of these marks, where each is one token
    manners      which orders of messages it takes
    efforts      words for how much to think that the template asks for by name; None: it asks for none
    preserves    the template can be told to keep the thoughts of earlier turns
    turn         the token with which every message begins
    """

    thinks: bool
    knows_tools: bool
    form: CallForm
    end_of_thought: int | None
    opening_of_call: int | None
    manners: Manners = field(default_factory=Manners)
    efforts: frozenset[str] | None = None
    preserves: bool = False
    turn: int | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Dialect:
        template = tokenizer.template
        return cls(
            thinks=THOUGHT in template,
            knows_tools="tools" in template,
            form=CallForm(tagged="<function=" in template),
            end_of_thought=tokenizer.token_id(THOUGHT),
            opening_of_call=tokenizer.token_id(OPEN),
            manners=Manners(
                anywhere=_takes(tokenizer, _ANYWHERE),
                without_user=_takes(tokenizer, _ALONE),
            ),
            efforts=frozenset(re.findall(r"['\"](\w+)['\"]", template)) if _EFFORT in template else None,
            preserves=PRESERVE in template,
            turn=_turn(tokenizer),
        )

    def after(self, start: ReplyStart) -> int | None:
        """The token after which a grammar begins; None for the answer's beginning."""
        return self.end_of_thought if start is ReplyStart.THINKING else None

    def start(self, prompt: str, continued: bool) -> ReplyStart:
        """Where a rendered prompt leaves the answer. `continued`: it ends within a message instead of with a header."""
        if not self.thinks:
            return ReplyStart.SPEAKING
        end = prompt.rstrip()
        if continued:
            return ReplyStart.THINKING if prompt.rfind(THINK) > prompt.rfind(THOUGHT) else ReplyStart.SPEAKING
        if end.endswith(THINK):
            return ReplyStart.THINKING
        return ReplyStart.SPEAKING if end.endswith(THOUGHT) else ReplyStart.OPEN

    def variables(self, effort: str | None) -> Mapping[str, Any]:
        """Template variables for how much to think. Empty if the caller does not ask: the template then decides."""
        if effort is None:
            return {}
        told: dict[str, Any] = {"enable_thinking": effort != "none"}
        if self.efforts is not None and effort != "none":
            words = (effort, *_NEAREST.get(effort, ()))
            told[_EFFORT] = next((word for word in words if word in self.efforts), words[-1])
        return told


def _turn(tokenizer: Tokenizer) -> int | None:
    """The token with which the header of an answer begins, if it is one."""
    try:
        closed, opened = (tokenizer.render([_USER], open_answer=opened) for opened in (False, True))
    except RequestError:
        return None
    header = opened.removeprefix(closed)
    mark = next((mark for mark in tokenizer.marks if header.startswith(mark)), None)
    return None if mark is None else tokenizer.token_id(mark)


def _takes(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the template renders these messages."""
    try:
        tokenizer.render(messages)
    except RequestError:
        return False
    return True
