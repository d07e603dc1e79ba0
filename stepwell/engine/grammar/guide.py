"""Keeps answers within a grammar: which tokens may come next, worked out beside the engine's steps.

    token known ─▶ ready? ── no: asked of the pool ─▶ left out of this step, the others go on
                     └── yes ─▶ in the step ─▶ allowed: the mask, at once

A matcher is the memory of one request's answer. It can always be made again from the grammar and the answer so far, and so can the
parser of it that a grammar process holds: the few that are kept are a convenience, and nobody has to say when a request has ended or
has been preempted.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.engine.grammar import wire
from stepwell.engine.grammar.desk import Order
from stepwell.engine.grammar.fair_pool import Counter, FairPool
from stepwell.engine.grammar.grammars import Grammars, encoded, expect_read
from stepwell.engine.grammar.vocabulary import GuideError
from stepwell.sched.request import SamplingParams

Allowed: TypeAlias = npt.NDArray[np.bool_]

QUICK = 0.01
"""Seconds of processor time up to which a mask counts as quick."""
TOGETHER = 32
"""Masks that the process for quick ones is asked for at once."""
GRACE = 0.002
"""Seconds after it was asked for that a step waits for a mask, unless the one before was dear: most take a fraction of it, and whoever
has one goes on a step earlier."""


@dataclass(slots=True, eq=False)
class _Matcher:
    """What is known of one request's answer.

    text     the grammar, which `name` names                    parser  the number of its parser
    scanned  tokens of the answer that have been looked at      begins  how many come before the grammar; None: all of them so far
    given    tokens within the grammar that the parser has read, once `mask` is there: what may follow them
    until    when a step waits for it no longer
    """

    grammar: str
    text: bytes
    name: bytes
    parser: int
    scanned: int = 0
    begins: int | None = None
    given: int = 0
    mask: Future[wire.Told] | None = None
    until: float = 0.0

    def follow(self, after: int | None, answer: Ints) -> int | None:
        """How many tokens of `answer` are within the grammar; None before it begins. O(tokens since the last call)."""
        if after is None:
            self.begins = 0
        elif self.begins is None:
            found = np.flatnonzero(answer[self.scanned :] == after)
            self.begins = self.scanned + int(found[0]) + 1 if len(found) else None
        self.scanned = len(answer)
        return None if self.begins is None else len(answer) - self.begins

    def fits(self, grammar: str, length: int) -> bool:
        """Whether it can go on to an answer of `length` tokens: not backwards, not past a fault, and not before its parser has stopped."""
        if grammar != self.grammar or length < self.scanned:
            return False
        if self.mask is None or length == self.scanned:
            return True
        return self.mask.done() and not self.mask.cancelled() and not self.mask.result().fault

    def order(self, answer: Ints) -> Order:
        """The question what may follow `answer`, all of which is within the grammar. O(its length)."""
        return Order(self.parser, self.text, self.name, self.given, answer.copy())


class Guides:
    """The matchers of the requests that run, and who follows them. `keep` is how many are remembered. Used by one thread."""

    __slots__ = ("_grace", "_grammars", "_keep", "_matchers", "_parsers", "_pool", "_vocab")

    def __init__(self, grammars: Grammars, vocab: int, keep: int, *, patient: bool = False) -> None:
        """`patient`: steps wait for every mask, so that no measured time decides which requests a step holds."""
        self._grammars = grammars
        self._vocab = vocab
        self._keep = keep
        self._grace = inf if patient else GRACE
        self._matchers: OrderedDict[str, _Matcher] = OrderedDict()
        self._parsers = count()
        self._pool = FairPool(
            Counter(grammars.quick.follow, TOGETHER, lambda pace: pace <= QUICK),
            Counter(grammars.dear.follow, 1, lambda pace: pace > QUICK),
        )

    def begin(self, request_id: str, params: SamplingParams, answer: Ints) -> None:
        """Work out what may follow `answer`, once its grammar has been read."""
        if self._prepared(request_id, params, len(answer)):
            with suppress(GuideError):
                self._asked(request_id, params, answer)

    def ready(self, request_id: str, params: SamplingParams, answer: Ints) -> bool:
        """Whether `allowed` would answer at once; else works on it. What cannot be followed is ready, too: to be refused."""
        if not self._prepared(request_id, params, len(answer)):
            return False
        try:
            mask = self._asked(request_id, params, answer)
        except GuideError:
            return True
        if mask is None or mask.done():
            return True
        left = self._matchers[request_id].until - time.monotonic()
        if left <= 0:
            return False  # even a wait of no time gives the interpreter's lock away, to a thread that may keep it
        try:
            mask.exception(None if left == inf else left)
        except Late:
            return False
        except CancelledError:
            return True  # to be refused
        return True

    def wait(self, seconds: float) -> bool:
        """Until another mask is there, at most this long; False where none is being worked out."""
        wanted: list[Future[Any]] = [one.mask for one in self._matchers.values() if one.mask and not one.mask.done()]
        wanted += self._grammars.awaited
        if wanted:
            wait(wanted, seconds, FIRST_COMPLETED)
        return bool(wanted)

    def allowed(self, request_id: str, params: SamplingParams, answer: Ints) -> Allowed | None:
        """Which tokens may follow `answer`, bool [vocab]; None for all. Waits where it is not `ready`. Raises GuideError where none may."""
        mask = self._asked(request_id, params, answer)
        try:
            told = None if mask is None else mask.result()
        except CancelledError as error:
            raise GuideError("the engine is closing") from error
        if told is None:
            return None
        if told.fault:
            raise GuideError(told.fault)
        bits = np.frombuffer(told.bits, np.uint8)
        return np.unpackbits(bits, bitorder="little", count=self._vocab).view(np.bool_)

    def close(self) -> None:
        """End the threads, once they have what they wait for: close the grammars before."""
        self._pool.close()

    def _prepared(self, request_id: str, params: SamplingParams, length: int) -> bool:
        known = self._matchers.get(request_id)
        return (known is not None and known.fits(params.grammar, length)) or self._grammars.prepare(request_id, params)

    def _asked(self, request_id: str, params: SamplingParams, answer: Ints) -> Future[wire.Told] | None:
        """The mask of what follows `answer`, being worked out; None where all may follow. Raises GuideError."""
        matcher = self._matcher(request_id, params, len(answer))
        within = matcher.follow(params.grammar_after, answer)
        if within is None:
            return None
        if matcher.mask is None or matcher.given != within:
            order = matcher.order(answer[len(answer) - within :])
            matcher.given, matcher.until = within, self._until(matcher.mask)
            matcher.mask = self._pool.submit(params.grammar_for, matcher.name, order)
        return matcher.mask

    def _until(self, last: Future[wire.Told] | None) -> float:
        """When a step waits no longer for the mask that follows `last`: at once where that was dear, since the next is likely to be."""
        dear = last is not None and last.result().seconds > QUICK
        return time.monotonic() + (0.0 if dear and self._grace < inf else self._grace)

    def _matcher(self, request_id: str, params: SamplingParams, length: int) -> _Matcher:
        known = self._matchers.pop(request_id, None)
        if known is None or not known.fits(params.grammar, length):
            reading = self._grammars.reading(params)
            if reading.done():
                expect_read(reading)
            text = encoded(params.grammar)
            known = _Matcher(params.grammar, text, wire.digest(text), next(self._parsers))
        self._matchers[request_id] = known
        while len(self._matchers) > self._keep:
            self._matchers.popitem(last=False)
        return known
