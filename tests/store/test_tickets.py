"""Every move is opened once and ended once; whoever waits hears of it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, LiveState, Move, Report, Tier
from stepwell.store.tickets import CopyTotal, Tickets, describe


def move(ticket: int, pages: int = 2, live: bool = False) -> Move:
    slots = np.arange(pages, dtype=np.int32)
    target = LiveState(0) if live else Extent(Tier.DEVICE, slots)
    return Move(ticket, "image" if live else "kv", Extent(Tier.HOST, slots), target, 64)


def test_reports_come_in_the_order_of_the_ends_and_once() -> None:
    tickets = Tickets(10)
    tickets.open([move(1), move(2)])
    tickets.end(move(2), "gone")
    tickets.end(move(1))
    assert tickets.poll() == [Report(2, False, "gone"), Report(1, True)] and not tickets.poll()


def test_a_ticket_is_open_once_at_a_time() -> None:
    tickets = Tickets(10)
    tickets.open([move(1)])
    with pytest.raises(AssertionError, match="already in flight"):
        tickets.open([move(1)])
    tickets.end(move(1))
    tickets.open([move(1)])


def test_totals_count_bytes_and_time_of_what_went_well() -> None:
    tickets = Tickets(10)
    tickets.end(move(1, pages=3), seconds=0.5)
    tickets.end(move(2, pages=5), "torn", seconds=9.0)
    tickets.end(move(3, live=True), seconds=0.25)
    assert tickets.totals() == {
        (Tier.HOST, Tier.DEVICE): CopyTotal(1, 1, 30, 0.5),
        (Tier.HOST, None): CopyTotal(1, 0, 20, 0.25),
    }


def test_waiting_ends_with_a_report_from_another_thread_and_the_bell_rings() -> None:
    tickets, bell = Tickets(10), threading.Event()
    tickets.listen(bell.set)
    tickets.open([move(1)])
    assert not tickets.drain(0.0)
    other = threading.Thread(target=tickets.end, args=(move(1),))
    other.start()
    tickets.wait(60)
    assert tickets.drain(60) and not tickets.drain(0.0, lambda: False)
    other.join()
    assert bell.is_set() and tickets.poll() == [Report(1, True)]


def test_errors_of_ours_speak_for_themselves() -> None:
    assert describe(StoreError("the slot is torn")) == "the slot is torn"
    assert describe(ValueError("x")) == "ValueError: x"
