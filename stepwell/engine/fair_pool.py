"""A few threads that work for many accounts, so that what one account asks for delays only that account.

The account that has used the least processor time goes first. One thread serves only accounts whose last piece of work was quick: a dear
piece cannot be interrupted, and would hold up the others for as long as it takes. Such a piece may also keep the interpreter's lock, as
llguidance does for most of a mask, so nothing else that is dear begins for a while: quick pieces, and the steps, have most of the time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

QUICK = 0.01
"""Seconds of processor time up to which a piece of work counts as quick."""
REST = 4.0
"""Parts of the time that a dear piece took for which no other begins."""
_ACCOUNTS = 4096  # remembered; an account that has been forgotten counts as new


@dataclass(slots=True)
class _Account:
    """used: seconds of processor time, from where the others stood when it first came. last: of its last piece of work."""

    used: float = 0.0
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    account: _Account
    work: Callable[[], Any]
    done: Future[Any] = field(default_factory=Future)


class FairPool:
    """Threads end at `close`. Safe to call from several threads."""

    __slots__ = ("_accounts", "_changed", "_closed", "_floor", "_rested", "_threads", "_waiting")

    def __init__(self, threads: int = 2) -> None:
        """The first of `threads` serves quick accounts alone, unless it is the only one."""
        self._accounts: OrderedDict[bytes, _Account] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._rested = 0.0  # until then nothing dear begins
        self._floor = 0.0  # what the account that was served last had used
        self._waiting: list[_Piece] = []
        self._threads = [
            threading.Thread(target=self._serve, args=(threads > 1 and i == 0,), name=f"fair-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, account: bytes, work: Callable[[], Any]) -> Future[Any]:
        """Have `work` done for `account`: after what that account asked for before, and when its turn among the others comes. Cancelled
        where the pool is closed. O(1)."""
        with self._changed:
            owner = self._accounts.setdefault(account, _Account())
            self._accounts.move_to_end(account)
            if len(self._accounts) > _ACCOUNTS:
                self._accounts.popitem(last=False)
            owner.used = max(owner.used, self._floor)  # time in which it asked for nothing is not saved up
            piece = _Piece(owner, work)
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

    def _serve(self, quick: bool) -> None:
        while (piece := self._take(quick)) is not None:
            if not piece.done.set_running_or_notify_cancel():
                continue
            began = time.thread_time()
            try:
                told, error = piece.work(), None
            except BaseException as raised:  # a panic in Rust is no Exception, and must not end the thread
                told, error = None, raised
            self._charge(piece.account, time.thread_time() - began)
            if error is None:
                piece.done.set_result(told)
            else:
                piece.done.set_exception(error)

    def _take(self, quick: bool) -> _Piece | None:
        """The next piece, waited for; None at the end. O(pieces that wait)."""
        with self._changed:
            while not self._closed:
                rest = max(0.0, self._rested - time.monotonic())
                fit = [one for one in self._waiting if one.account.last <= QUICK or not (quick or rest)]
                if fit:
                    chosen = min(fit, key=lambda piece: piece.account.used)  # of one account the oldest
                    self._waiting.remove(chosen)
                    self._floor = max(self._floor, chosen.account.used)
                    return chosen
                self._changed.wait(rest or None)
            return None

    def _charge(self, account: _Account, seconds: float) -> None:
        with self._changed:
            account.used += seconds
            account.last = seconds
            if seconds > QUICK:
                self._rested = time.monotonic() + REST * seconds
            self._changed.notify_all()
