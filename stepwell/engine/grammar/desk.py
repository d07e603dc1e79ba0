"""Asks a grammar process, and asks again where it has forgotten something or was ended by another's grammar.

asked ─▶ answered
  ▲  └─▶ the process has ended ─┬─ another question was the reason ─▶ asked again, of the next process
  └─────────────────────────────┘
                                └─ this one may be the reason ─▶ asked in a cell, a process for it alone ─┬─▶ answered
                                                                                                          └─▶ ends that, too: refused
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from stepwell.base.errors import StepwellError
from stepwell.base.geometry import Ints
from stepwell.engine.grammar import wire
from stepwell.engine.grammar.client import Ended, GrammarProcess, Unavailable
from stepwell.engine.grammar.process import READ_SECONDS
from stepwell.engine.grammar.vocabulary import refusal

_TRIES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """What may follow `answer`, the tokens within the grammar, of which parser number `parser` has read `given`? `text` is the grammar."""

    parser: int
    text: bytes
    name: bytes
    given: int
    answer: Ints

    @property
    def on(self) -> wire.Next:
        """The question for a process that has the parser."""
        return wire.Next(self.parser, self.name, self.given, self.answer[self.given :].tolist())

    @property
    def anew(self) -> wire.Next:
        """The question for one that has the grammar alone."""
        return wire.Next(self.parser, self.name, 0, self.answer.tolist())


class Desk:
    """One process. Nothing here raises: what goes wrong is told as a fault."""

    __slots__ = ("_process",)

    def __init__(self, process: GrammarProcess) -> None:
        self._process = process

    def read(self, text: bytes) -> wire.Told:
        """Have the process read a grammar. Blocks until it is read or refused; other grammars may end the process meanwhile."""
        while True:
            (answer,) = self._process.ask([wire.Read(text)])
            try:
                told = answer.result()
            except Unavailable as error:
                return _refused(error)
            except Ended as error:
                if error.suspect:
                    return self._alone([wire.Read(text)])
            else:
                assert isinstance(told, wire.Told), "what is read is not lost"
                return told

    def follow(self, orders: Sequence[Order]) -> Iterator[wire.Told]:
        """What may follow each, in their order."""
        left = deque(orders)
        while left:
            for answer in self._process.ask([order.on for order in left]):
                order = left[0]
                try:
                    told = self._settled(order, answer)
                except Unavailable as error:
                    told = _refused(error)
                except Ended as error:
                    if not error.suspect:
                        break  # this one and those behind it are asked again
                    told = self._alone([wire.Read(order.text), order.anew])
                yield told
                left.popleft()

    def _settled(self, order: Order, answer: Future[wire.Answer]) -> wire.Told:
        """The answer to `order`, with what the process had forgotten said again. Raises Ended and Unavailable."""
        told = answer.result()
        for _ in range(_TRIES):
            if isinstance(told, wire.Told):
                return told
            (again,) = self._process.ask([order.anew])
            told = again.result()
            if isinstance(told, wire.Lost) and (read := self.read(order.text)).fault:
                return read
        return told if isinstance(told, wire.Told) else wire.Told(refusal("other grammars displace it at once"), 0.0)

    def _alone(self, questions: Sequence[wire.Question]) -> wire.Told:
        """Ask these questions, in order, of a process of their own. Returns the answer to the last, unless an earlier one is at fault."""
        told: wire.Answer = wire.Lost()
        with self._process.cell() as cell:
            for question in questions:
                try:
                    told = cell.ask([question])[0].result()
                except (Ended, Unavailable) as error:
                    return _refused(error)
                if isinstance(told, wire.Told) and told.fault:
                    break
        assert isinstance(told, wire.Told), "a cell forgets nothing between two questions"
        return told


def _refused(error: StepwellError) -> wire.Told:
    """The answer for a grammar that cannot be followed. It counts as the slowest there is: more of its kind wait behind the others."""
    return wire.Told(refusal(str(error)), READ_SECONDS)
