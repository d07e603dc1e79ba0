"""Work of many callers for a few counters, so that what one caller asks for delays only that caller.

Each counter does one piece after the other and cannot be interrupted. The caller who has used the least time goes first; of what one
caller asks for, the kind that has used the least.

    submit ─▶ waiting ─▶ the next of those that a counter takes: by the used time of (caller, kind)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Generic, Protocol, TypeVar

_FADES = (
    0.8  # part of a kind's pace that a quicker piece leaves: what was dear once is not moved from counter to counter
)
_ACCOUNTS = 4096  # callers that are remembered, and kinds; one that has been forgotten counts as new


class Timed(Protocol):
    """What comes of a piece of work."""

    @property
    def seconds(self) -> float:
        """That it took."""


O = TypeVar("O")  # noqa: E741  an order
R = TypeVar("R", bound=Timed)
K = TypeVar("K")


@dataclass(slots=True, eq=False)
class _Account:
    """Of a caller, or of one kind that a caller asks for.

    used   seconds, from where the others stood when it first came    floor  what the kind of this caller's that was served last had used
    pace   seconds of its last pieces
    """

    used: float = 0.0
    floor: float = 0.0
    pace: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Piece(Generic[O, R]):
    caller: _Account
    kind: _Account
    order: O
    done: Future[R] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class Counter(Generic[O, R]):
    """Who does the work: called with orders, it yields what comes of each, in their order; where it raises, that is what comes of the rest.

    most   orders that it is given at once: one message instead of many
    takes  whether it serves kinds of a pace, the seconds that their last pieces have taken
    """

    serve: Callable[[Sequence[O]], Iterator[R]]
    most: int = 1
    takes: Callable[[float], bool] = lambda pace: True


class FairPool(Generic[O, R]):
    """A thread for each counter, from the first order until `close`. Safe to call from several threads."""

    __slots__ = ("_callers", "_changed", "_closed", "_counters", "_floor", "_kinds", "_threads", "_waiting")

    def __init__(self, *counters: Counter[O, R]) -> None:
        self._counters = counters
        self._callers: OrderedDict[str, _Account] = OrderedDict()
        self._kinds: OrderedDict[tuple[str, bytes], _Account] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._floor = 0.0  # what the caller who was served last had used
        self._waiting: list[_Piece[O, R]] = []
        self._threads: list[threading.Thread] = []

    def submit(self, caller: str, kind: bytes, order: O) -> Future[R]:
        """Have `order` done for `caller`: after what that caller asked for of this kind before, and when its turn among the others comes.
        Cancelled where the pool is closed. O(1)."""
        with self._changed:
            asker, of_kind = _account(self._callers, caller), _account(self._kinds, (caller, kind))
            asker.used = max(asker.used, self._floor)  # time in which one asked for nothing is not saved up
            of_kind.used = max(of_kind.used, asker.floor)
            piece: _Piece[O, R] = _Piece(asker, of_kind, order)
            if self._closed:
                piece.done.cancel()
            else:
                self._begin()
                self._waiting.append(piece)
                self._changed.notify_all()
        return piece.done

    def close(self) -> None:
        """Drop what has not begun, wait for the rest."""
        with self._changed:
            self._closed = True
            dropped, self._waiting = self._waiting, []
            self._changed.notify_all()
        for piece in dropped:
            piece.done.cancel()
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._serve, args=(counter,), daemon=True) for counter in self._counters
            ]
            for thread in self._threads:
                thread.start()

    def _serve(self, counter: Counter[O, R]) -> None:
        while pieces := self._take(counter):
            pieces = [piece for piece in pieces if piece.done.set_running_or_notify_cancel()]
            done = 0
            try:
                for piece, told in zip(pieces, counter.serve([piece.order for piece in pieces]), strict=True):
                    self._charge(piece, told.seconds)
                    piece.done.set_result(told)
                    done += 1
            except BaseException as error:  # the thread must not end: others wait for it
                for piece in pieces[done:]:
                    piece.done.set_exception(error)

    def _take(self, counter: Counter[O, R]) -> list[_Piece[O, R]]:
        """The next pieces, waited for; none at the end. O(pieces that wait)."""
        with self._changed:
            while not self._closed:
                fit = [piece for piece in self._waiting if counter.takes(piece.kind.pace)]
                if fit:
                    # of one kind the oldest
                    chosen = nsmallest(counter.most, fit, key=lambda piece: (piece.caller.used, piece.kind.used))
                    self._waiting = [piece for piece in self._waiting if piece not in chosen]
                    first = chosen[0]
                    self._floor = max(self._floor, first.caller.used)
                    first.caller.floor = max(first.caller.floor, first.kind.used)
                    return chosen
                self._changed.wait()
            return []

    def _charge(self, piece: _Piece[O, R], seconds: float) -> None:
        with self._changed:
            for account in (piece.caller, piece.kind):
                account.used += seconds
            piece.kind.pace = max(seconds, _FADES * piece.kind.pace)
            self._changed.notify_all()


def _account(accounts: OrderedDict[K, _Account], name: K) -> _Account:
    found = accounts.setdefault(name, _Account())
    accounts.move_to_end(name)
    if len(accounts) > _ACCOUNTS:
        accounts.popitem(last=False)
    return found
