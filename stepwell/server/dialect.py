"""How one model writes thoughts and calls of tools, read off its chat template."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.engine.tokenizer import Tokenizer
from stepwell.server.grammar import CallForm
from stepwell.server.read.marks import OPEN
from stepwell.server.read.reply import THINK, THOUGHT, Start


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the server has to know of a template.

    thinks       answers may hold thoughts
    knows_tools  the template shows tools to the model
    form         how calls are written
    end_of_thought, opening_of_call   the tokens of these marks, where each is one token
    """

    thinks: bool
    knows_tools: bool
    form: CallForm
    end_of_thought: int | None
    opening_of_call: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Dialect:
        template = tokenizer.template
        return cls(
            thinks=THOUGHT in template,
            knows_tools="tools" in template,
            form=CallForm(tagged="<function=" in template),
            end_of_thought=tokenizer.token_id(THOUGHT),
            opening_of_call=tokenizer.token_id(OPEN),
        )

    def after(self, start: Start) -> int | None:
        """The token after which a grammar begins; None for the answer's beginning."""
        return self.end_of_thought if start is Start.THINKING else None

    def start(self, prompt: str, continued: bool) -> Start:
        """Where a rendered prompt leaves the answer. `continued`: it ends within a message instead of with a header."""
        if not self.thinks:
            return Start.SPEAKING
        end = prompt.rstrip()
        if continued:
            return Start.THINKING if prompt.rfind(THINK) > prompt.rfind(THOUGHT) else Start.SPEAKING
        if end.endswith(THINK):
            return Start.THINKING
        return Start.SPEAKING if end.endswith(THOUGHT) else Start.OPEN
