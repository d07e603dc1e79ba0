"""What was said, as a value; and the branches of it that the user has opened."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from stepwell.base.errors import RequestError

Message: TypeAlias = dict[str, str]
Role: TypeAlias = Literal["system", "user", "assistant"]
_HEADINGS = {"system": "Instructions", "user": "You", "assistant": "Answer"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order, and the tokens that the last answer left in the context (0 before there was one)."""

    said: tuple[tuple[Role, str], ...] = ()
    tokens: int = 0

    @classmethod
    def under(cls, system: str) -> Conversation:
        """A new one with these instructions; with "" none."""
        return cls((("system", system),) if system else ())

    @property
    def messages(self) -> list[Message]:
        return [{"role": role, "content": text} for role, text in self.said]

    @property
    def questions(self) -> list[str]:
        return [text for role, text in self.said if role == "user"]

    def asked(self, text: str) -> Conversation:
        return replace(self, said=(*self.said, ("user", text)))

    def answered(self, text: str, tokens: int) -> Conversation:
        return Conversation((*self.said, ("assistant", text)), tokens)

    def before(self, question: int) -> Conversation:
        """What was said before the question of this number, counted from 1. Raises RequestError where there is none."""
        places = [at for at, (role, _) in enumerate(self.said) if role == "user"]
        if not 1 <= question <= len(places):
            raise RequestError(f"there is no question {question}: {len(places)} were asked")
        return Conversation(self.said[: places[question - 1]])

    def as_json(self) -> str:
        """A list of messages, as the API takes it."""
        return json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n"

    def as_markdown(self) -> str:
        return "\n".join(f"## {_HEADINGS[role]}\n\n{text}\n" for role, text in self.said)


@dataclass(frozen=True, slots=True)
class Branches:
    """Conversations that began as one. `at`: the one that goes on."""

    all: tuple[Conversation, ...]
    at: int = 0

    @property
    def current(self) -> Conversation:
        return self.all[self.at]

    def going_on(self, conversation: Conversation) -> Branches:
        """The same with the current one replaced."""
        return replace(self, all=(*self.all[: self.at], conversation, *self.all[self.at + 1 :]))

    def branched(self, question: int) -> Branches:
        """Another branch, which leaves the current one before this question. Raises RequestError."""
        return Branches((*self.all, self.current.before(question)), len(self.all))

    def switched(self, number: int) -> Branches:
        """On the branch of this number, counted from 1. Raises RequestError."""
        if not 1 <= number <= len(self.all):
            raise RequestError(f"there is no branch {number}: there are {len(self.all)}")
        return replace(self, at=number - 1)
