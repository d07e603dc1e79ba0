"""Work of many accounts for two desks, so that what one account asks for delays only that account.

A desk does one piece after the other and cannot be interrupted. The first one serves accounts whose pieces are quick, the second those
whose pieces are dear. At each the account that has used the least processor time goes first.

    submit ─▶ waiting ──┬── pace ≤ QUICK ──▶ quick desk, up to TOGETHER pieces at once
                        └── pace > QUICK ──▶ dear desk, one piece at a time
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Generic, Protocol, TypeVar

QUICK = 0.01
"""Seconds of processor time up to which a piece of work counts as quick."""
TOGETHER = 32
"""Pieces that the quick desk takes at once: one message instead of many."""
_FADES = 0.8  # part of an account's pace that a quicker piece leaves: who was dear once is not moved from desk to desk
_ACCOUNTS = 4096  # remembered; an account that has been forgotten counts as new


class Timed(Protocol):
    """What comes of a piece of work."""

    @property
    def seconds(self) -> float:
        """Of processor time that it took."""


O = TypeVar("O")  # noqa: E741  an order
R = TypeVar("R", bound=Timed)


@dataclass(slots=True)
class _Account:
    """used: seconds of processor time, from where the others stood when it first came. pace: of its last pieces."""

    used: float = 0.0
    pace: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Piece(Generic[O, R]):
    account: _Account
    order: O
    done: Future[R] = field(default_factory=Future)


class FairPool(Generic[O, R]):
    """Two threads, one a desk, which end at `close`. Safe to call from several threads.

    A desk is called with orders and yields what comes of each, in their order; where it raises, that is what comes of the rest.
    """

    __slots__ = ("_accounts", "_changed", "_closed", "_floor", "_threads", "_waiting")

    def __init__(self, quick: Callable[[Sequence[O]], Iterator[R]], dear: Callable[[Sequence[O]], Iterator[R]]) -> None:
        self._accounts: OrderedDict[bytes, _Account] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._floor = 0.0  # what the account that was served last had used
        self._waiting: list[_Piece[O, R]] = []
        desks = (quick, TOGETHER), (dear, 1)
        self._threads = [threading.Thread(target=self._serve, args=desk, daemon=True) for desk in desks]
        for thread in self._threads:
            thread.start()

    def submit(self, account: bytes, order: O) -> Future[R]:
        """Have `order` done for `account`: after what that account asked for before, and when its turn among the others comes. Cancelled
        where the pool is closed. O(1)."""
        with self._changed:
            owner = self._accounts.setdefault(account, _Account())
            self._accounts.move_to_end(account)
            if len(self._accounts) > _ACCOUNTS:
                self._accounts.popitem(last=False)
            owner.used = max(owner.used, self._floor)  # time in which it asked for nothing is not saved up
            piece: _Piece[O, R] = _Piece(owner, order)
            if self._closed:
                piece.done.cancel()
            else:
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

    def _serve(self, desk: Callable[[Sequence[O]], Iterator[R]], most: int) -> None:
        while pieces := self._take(most):
            pieces = [piece for piece in pieces if piece.done.set_running_or_notify_cancel()]
            done = 0
            try:
                for piece, told in zip(pieces, desk([piece.order for piece in pieces]), strict=True):
                    self._charge(piece.account, told.seconds)
                    piece.done.set_result(told)
                    done += 1
            except BaseException as error:  # the thread must not end: others wait for it
                for piece in pieces[done:]:
                    piece.done.set_exception(error)

    def _take(self, most: int) -> list[_Piece[O, R]]:
        """The next pieces, waited for; none at the end. O(pieces that wait)."""
        with self._changed:
            while not self._closed:
                fit = [piece for piece in self._waiting if (piece.account.pace <= QUICK) == (most > 1)]
                if fit:
                    chosen = nsmallest(most, fit, key=lambda piece: piece.account.used)  # of one account the oldest
                    self._waiting = [piece for piece in self._waiting if piece not in chosen]
                    self._floor = max(self._floor, chosen[0].account.used)
                    return chosen
                self._changed.wait()
            return []

    def _charge(self, account: _Account, seconds: float) -> None:
        with self._changed:
            account.used += seconds
            account.pace = max(seconds, _FADES * account.pace)
            self._changed.notify_all()
