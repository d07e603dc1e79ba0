"""A rank at work: takes orders, launches steps, tells results and reports. It decides nothing."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import numpy as np

from stepwell.cache.disk.archive import Dormant
from stepwell.cache.moves import Name
from stepwell.engine.ranks.channel import Channel, Message
from stepwell.engine.ranks.heartbeat import Tally
from stepwell.engine.ranks.masks import SentMasks
from stepwell.engine.ranks.wire import (
    CATALOGUE,
    FOUND,
    GIVE_WAY,
    OUTSIDE,
    REPORTS,
    RESULT,
    STEP,
    STOP,
    TASKS,
    Adopt,
    Drop,
    LookUp,
    Lose,
    Release,
    decode_filing,
    decode_outside,
    encode,
)
from stepwell.engine.wire.link import Answer, Endpoint
from stepwell.engine.wire.moves import write_reports
from stepwell.store.disk.store import DiskStore
from stepwell.store.external.mover import ExternalMover
from stepwell.store.pinned import Pinning

_NOTHING = write_reports([])
_COPYING, _IDLE = 0.001, 1.0
"""Seconds between two looks for reports while something is being copied, and while nothing is; an order ends the wait."""
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
        control: Channel,
        external: ExternalMover | None = None,
    ) -> None:
        """`external` asks the external store, if there is one."""
        self._rank = rank
        self._endpoint = endpoint
        self._masks = masks
        self._store = store
        self._pinning = pinning
        self._tally = tally
        self._control = control
        self._external = external
        self._launched: SimpleQueue[Answer | None] = SimpleQueue()
        self._broken: Exception | None = None
        self._results = threading.Thread(target=self._tell_results, name="stepwell-results", daemon=True)
        self._results.start()

    def run(self) -> None:
        """Serve until told to stop, or control has gone. Raises whatever goes wrong on either thread."""
        while self._take_orders():
            self._tally.turns += 1
            reports = self._endpoint.poll()
            if reports != _NOTHING:
                self._control.send(REPORTS, reports)
            if self._external is not None and (found := self._external.answers()):
                self._control.send(FOUND, encode(found))
        self._launched.put(None)
        self._results.join()

    def _take_orders(self) -> bool:
        """Carry out what has arrived, waiting for the first; False once told to stop."""
        asked = self._external is not None and self._external.busy
        self._tally.waiting = True
        order = self._control.receive(_COPYING if asked or self._endpoint.open else _IDLE)
        self._tally.waiting = False
        while order is not None:
            self._raise_broken()
            if order.kind == STOP:
                return False
            self._tally.orders += 1
            self._carry_out(order)
            order = self._control.receive(0)
        self._raise_broken()
        return not self._control.ended

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _carry_out(self, order: Message) -> None:
        kind, data, more = order
        if kind == STEP:
            self._masks.take(more)
            self._tally.launched += 1
            self._launched.put(self._endpoint.launch(data))
        elif kind == TASKS:
            self._endpoint.start(data)
        elif kind == CATALOGUE:
            self._file(data)
        elif kind == OUTSIDE:
            self._ask(data)
        elif kind == GIVE_WAY and self._pinning is not None:
            self._pinning.give_way(data == b"1")

    def _ask(self, data: bytes) -> None:
        """What the external store is asked and told."""
        store = self._external
        assert store is not None, "control asks only where there is one"
        match decode_outside(data):
            case LookUp(query, ranks):
                if self._rank < ranks:  # all are told, for ranks are compared by the orders that they have taken
                    store.look_up(query)
            case Release(number):
                store.release(number)
            case Lose(what, names):
                store.forget(what, names)

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
        try:
            while (answer := self._launched.get()) is not None:
                result = answer()
                self._tally.finish(result)
                if not self._rank:
                    self._control.send(RESULT, result)
        except Exception as error:
            self._broken = error
