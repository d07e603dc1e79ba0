"""Pins and prefetches: from a front end's message to the loop, and the loop's answers back."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np

from stepwell.engine.process import messages
from stepwell.sched.retention import Prefetched, Subject


class HintedLoop(Protocol):
    """The part of an engine loop that takes hints (see `stepwell.sched.retention`)."""

    def pin(self, subject: Subject, seconds: float) -> int: ...

    def unpin(self, subject: Subject) -> int: ...

    def prefetch(self, number: int, subject: Subject) -> None: ...

    def prefetched(self) -> list[Prefetched]: ...


Hint: TypeAlias = messages.Pin | messages.Prefetch


def take_hint(loop: HintedLoop, hint: Hint) -> list[messages.Answer]:
    """Carry out `hint`; answers to it, and to prefetches that have ended meanwhile."""
    match hint:
        case messages.Pin(number, about, seconds):
            subject = _subject(about)
            return [messages.Pinned(number, loop.unpin(subject) if seconds is None else loop.pin(subject, seconds))]
        case messages.Prefetch(number, about):
            loop.prefetch(number, _subject(about))
            return fetched(loop)


def fetched(loop: HintedLoop) -> list[messages.Answer]:
    """Answers to prefetches that have ended."""
    return [messages.Fetched(done.number, done) for done in loop.prefetched()]


def _subject(about: messages.About) -> Subject:
    return Subject(about.salt, np.frombuffer(about.prompt, np.int32))
