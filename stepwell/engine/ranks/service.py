"""A rank at work: takes orders, launches steps, tells results and reports. It decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import zmq

from stepwell.cache.disk.archive import Dormant
from stepwell.cache.moves import Name
from stepwell.engine.ranks.heartbeat import Tally
from stepwell.engine.ranks.masks import SentMasks
from stepwell.engine.ranks.wire import (
    CATALOGUE,
    GIVE_WAY,
    REPORTS,
    RESULT,
    STEP,
    STOP,
    TASKS,
    Adopt,
    Drop,
    decode_filing,
)
from stepwell.engine.wire.link import Answer, Endpoint
from stepwell.engine.wire.moves import write_reports
from stepwell.store.disk.store import DiskStore
from stepwell.store.pinned import Pinning

_NOTHING = write_reports([])
_COPYING_MS, _IDLE_MS = 1, 1000
"""Milliseconds between two looks for reports while something is being copied, and while nothing is; an order ends the wait."""
_NAMELESS = Name(b"", b"", b"", 0, 0)


class RankService:
    """Orders are carried out on the thread that calls `run`; results are waited for on another, so that the next step can be launched."""

    def __init__(
        self,
        rank: int,
        endpoint: Endpoint,
        masks: SentMasks,
        store: DiskStore | None,
        pinning: Pinning | None,
        tally: Tally,
        orders: zmq.Socket[bytes],
        answers: Callable[[], zmq.Socket[bytes]],
    ) -> None:
        """`answers` makes a socket for the thread that calls it."""
        self._rank = rank
        self._endpoint = endpoint
        self._masks = masks
        self._store = store
        self._pinning = pinning
        self._tally = tally
        self._orders = orders
        self._open_answers = answers
        self._answers = answers()
        self._launched: SimpleQueue[Answer | None] = SimpleQueue()
        self._broken: Exception | None = None
        self._results = threading.Thread(target=self._tell_results, name="stepwell-results", daemon=True)
        self._results.start()

    def run(self) -> None:
        """Serve until told to stop. Raises whatever goes wrong on either thread."""
        while self._take_orders():
            reports = self._endpoint.poll()
            if reports != _NOTHING:
                self._answers.send_multipart((REPORTS, bytes([self._rank]), reports))
        self._launched.put(None)
        self._results.join()

    def _take_orders(self) -> bool:
        """Carry out what has arrived, waiting for the first; False once told to stop. Each call of the socket costs microseconds a step."""
        self._orders.rcvtimeo = _COPYING_MS if self._endpoint.open else _IDLE_MS
        flags = 0
        while order := self._order(flags):
            if self._broken is not None:
                raise self._broken
            if order[0] == STOP:
                return False
            self._carry_out(order[0], order[1:])
            flags = zmq.NOBLOCK
        if self._broken is not None:
            raise self._broken
        return True

    def _order(self, flags: int) -> list[bytes]:
        """The next order; empty where none has come in time."""
        try:
            return self._orders.recv_multipart(flags)
        except zmq.Again:
            return []

    def _carry_out(self, kind: bytes, data: list[bytes]) -> None:
        if kind == STEP:
            step, masks = data
            self._masks.take(masks)
            self._tally.launch()
            self._launched.put(self._endpoint.launch(step))
        elif kind == TASKS:
            self._endpoint.start(data[0])
        elif kind == CATALOGUE:
            self._file(data[0])
        elif kind == GIVE_WAY and self._pinning is not None:
            self._pinning.give_way(data[0] == b"1")

    def _file(self, data: bytes) -> None:
        """What becomes of records that an earlier process left."""
        assert self._store is not None, "what is filed is on disk"
        catalogue = self._store.catalogue
        match decode_filing(data):
            case Adopt(records, slots):
                taken = np.frombuffer(slots, np.int32)
                catalogue.adopt(Dormant(records[self._rank], "kv", _NAMELESS, len(taken)), taken)
            case Drop(records):
                for record in records[self._rank]:
                    catalogue.discard(Dormant(record, "kv", _NAMELESS, 0))

    def _tell_results(self) -> None:
        socket = self._open_answers()
        try:
            while (answer := self._launched.get()) is not None:
                result = answer()
                self._tally.finish(result)
                if not self._rank:
                    socket.send_multipart((RESULT, b"\0", result))
        except Exception as error:
            self._broken = error
        socket.close(linger=1000)
