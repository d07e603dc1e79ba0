"""What callers say about the future, from a front end's message to the loop and back."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np

from stepwell.engine import messages
from stepwell.sched.retention import Prefetched, Subject


class HintedLoop(Protocol):
    """The part of an engine loop that takes hints (see `stepwell.sched.retention`)."""

    def pin(self, subject: Subject, seconds: float) -> int | None: ...

    def unpin(self, subject: Subject) -> int: ...

    def end_session(self, salt: str, session: str) -> int | None: ...

    def prefetch(self, number: int, subject: Subject) -> None: ...

    def prefetched(self) -> list[Prefetched]: ...


Hint: TypeAlias = messages.Keep | messages.EndSession | messages.Prefetch


def take_hint(loop: HintedLoop, hint: Hint) -> list[messages.Answer]:
    """Carry out `hint`; answers to it, and to prefetches that have ended meanwhile."""
    match hint:
        case messages.Keep(number, about, seconds):
            subject = _subject(about)
            tokens = loop.unpin(subject) if seconds is None else loop.pin(subject, seconds)
            return [messages.Kept(number, tokens is not None, tokens or 0)]
        case messages.EndSession(number, salt, session):
            pages = loop.end_session(salt, session)
            return [messages.Kept(number, pages is not None, pages or 0)]
        case messages.Prefetch(number, about):
            loop.prefetch(number, _subject(about))
            return fetched(loop)


def fetched(loop: HintedLoop) -> list[messages.Answer]:
    """Answers to prefetches that have ended."""
    return [messages.Fetched(done.number, done) for done in loop.prefetched()]


def _subject(about: messages.About) -> Subject:
    prompt = None if about.prompt is None else np.frombuffer(about.prompt, np.int32)
    return Subject(about.salt, prompt, about.session)
