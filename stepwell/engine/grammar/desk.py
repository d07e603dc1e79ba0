"""Asks a grammar process, and asks again where it has forgotten something or was ended by another's grammar."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass

from stepwell.base.geometry import Ints
from stepwell.engine.grammar import wire
from stepwell.engine.grammar.client import Ended, GrammarProcess

READ_SECONDS = 120.0
"""Seconds after which a grammar that is still being read ends its process; the server's own trial of it takes 20 at most."""
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
        """Have the process read a grammar. Blocks for READ_SECONDS at most, unless another grammar ends the process meanwhile."""
        why = ""
        for _ in range(2):
            (answer,) = self._process.ask([wire.Read(text)])
            try:
                told = answer.result(READ_SECONDS)
            except Late:
                self._process.stop()
                return _refused(f"it takes more than {READ_SECONDS:g} s to read")
            except Ended as error:
                why = str(error)
            else:
                assert isinstance(told, wire.Told), "what is read is not lost"
                return told
        return _refused(why)

    def follow(self, orders: Sequence[Order]) -> Iterator[wire.Told]:
        """What may follow each, in their order. The process works on one after the other, so when it ends it is the first one without an
        answer that has ended it, or else a grammar that was being read: that order is asked once more before it is refused."""
        left = deque(orders)
        suspect: Order | None = None
        while left:
            for answer in self._process.ask([order.on for order in left]):
                order = left[0]
                try:
                    told = self._settled(order, answer)
                except Ended as error:
                    if error.slow or order is suspect:
                        yield _refused(str(error))
                        left.popleft()
                    suspect = order
                    break  # the others are asked again
                yield told
                left.popleft()

    def _settled(self, order: Order, answer: Future[wire.Answer]) -> wire.Told:
        """The answer to `order`, with what the process had forgotten said again. Raises Ended."""
        told = answer.result()
        for _ in range(_TRIES):
            if isinstance(told, wire.Told):
                return told
            (again,) = self._process.ask([order.anew])
            told = again.result()
            if isinstance(told, wire.Lost) and (read := self.read(order.text)).fault:
                return read
        return told if isinstance(told, wire.Told) else _refused("other grammars displace it at once")


def _refused(why: str) -> wire.Told:
    """The answer for a grammar that cannot be followed. It counts as the slowest mask there is: more of its kind wait behind the others."""
    return wire.Told(f"the grammar cannot be followed: {why}: make it simpler", READ_SECONDS)
