"""Adoptions take effect at once and orders come later: the writer sees them in an order it can take literally."""

from __future__ import annotations

from stepwell.cache.moves import Divide, Extent, Forget, Move, Tier, Touch
from stepwell.store.disk.inbox import Adopt, Copy, DiskTask, Drop, Inbox
from tests.store.disk.rig import ints


def write(ticket: int, *slots: int) -> Move:
    return Move(ticket, "kv", Extent(Tier.HOST, ints(*slots)), Extent(Tier.DISK, ints(*slots)), 0)


def jobs(inbox: Inbox) -> list[str]:
    return [told(job) for job in inbox.take(1 << 30, 1)]


def told(job: DiskTask) -> str:
    match job:
        case Copy(move):
            return f"copy {move.ticket}"
        case Adopt(record, slots):
            return f"adopt {record} {slots.tolist()}"
        case Drop(records):
            return f"drop {records}"
        case Divide(last, first):
            return f"divide {last} {first}"
        case Forget(slots):
            return f"forget {slots.tolist()}"
        case Touch(slots):
            return f"touch {slots.tolist()}"
        case _:
            return str(job)


def test_jobs_come_out_in_order() -> None:
    inbox = Inbox(10, 10)
    inbox.submit([write(1, 0, 1), Forget(ints(0, 1)), write(2, 0, 1)], lambda: None)
    inbox.adopt(7, ints(2, 3), False)
    inbox.drop(8, 9)
    assert jobs(inbox) == ["copy 1", "forget [0, 1]", "copy 2", "adopt 7 [2, 3]", "drop (8, 9)"]


def test_orders_that_come_after_an_adoption_of_their_slots_are_about_what_was_there_before() -> None:
    inbox = Inbox(10, 10)
    inbox.submit([write(1, 0, 1, 2)], lambda: None)
    inbox.adopt(7, ints(1, 2), False)  # the directory has forgotten 1 and 2, and has not said so yet
    late = [Divide(0, 1, 4, b""), Touch(ints(0, 1)), Forget(ints(1, 2)), Divide(1, 2, 4, b""), Forget(ints(1))]
    inbox.submit(late, lambda: None)
    assert jobs(inbox) == ["copy 1", "forget [1, 2]", "adopt 7 [1, 2]", "touch [0]", "divide 1 2", "forget [1]"]


def test_slots_that_were_forgotten_in_time_are_adopted_as_they_are() -> None:
    inbox = Inbox(10, 10)
    inbox.submit([write(1, 0, 1), Forget(ints(0, 1))], lambda: None)
    inbox.adopt(7, ints(0, 1), False)
    inbox.submit([Forget(ints(0, 1))], lambda: None)
    assert jobs(inbox) == ["copy 1", "forget [0, 1]", "adopt 7 [0, 1]", "forget [0, 1]"]


def test_slots_adopted_twice_before_an_order_comes_owe_two() -> None:
    inbox = Inbox(10, 10)
    inbox.adopt(7, ints(0), False)
    inbox.adopt(8, ints(0), False)
    inbox.adopt(9, ints(0), False)
    inbox.submit([Forget(ints(0)), Forget(ints(0)), Forget(ints(0))], lambda: None)
    assert jobs(inbox) == ["adopt 7 [0]", "forget [0]", "adopt 8 [0]", "forget [0]", "adopt 9 [0]", "forget [0]"]


def test_a_move_that_found_no_room_takes_its_slots_all_the_same() -> None:
    inbox = Inbox(10, 1)
    refused = inbox.submit([write(1, 0), write(2, 1)], lambda: None)
    assert [move.ticket for move in refused] == [2]
    inbox.adopt(7, ints(1), False)  # forgotten by the directory when it heard that move 2 failed
    inbox.submit([Forget(ints(1))], lambda: None)
    assert jobs(inbox) == ["copy 1", "forget [1]", "adopt 7 [1]"]


def test_a_batch_ends_before_too_many_bytes_but_has_one_move_at_least() -> None:
    inbox = Inbox(100, 100)
    inbox.submit([write(1, *range(50)), write(2, 60), Touch(ints(1)), write(3, 61)], lambda: None)
    assert [told(job) for job in inbox.take(10, 1)] == ["copy 1"]
    assert [told(job) for job in inbox.take(1, 1)] == ["copy 2", "touch [1]"]
    assert len(inbox) == 1


def test_slots_that_do_not_exist_are_no_one_s() -> None:
    inbox = Inbox(4, 10)
    inbox.submit([Forget(ints(-1, 9)), Touch(ints(9)), Divide(0, 9, 4, b"")], lambda: None)
    assert jobs(inbox) == []


def test_touches_do_not_pile_up_while_nobody_takes_them() -> None:
    inbox = Inbox(10, 3)
    for _ in range(100):
        inbox.submit([Touch(ints(1))], lambda: None)
    inbox.submit([Forget(ints(1))], lambda: None)
    assert jobs(inbox) == ["touch [1]"] * 3 + ["forget [1]"]
