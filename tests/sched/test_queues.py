"""Places in the queue: by priority, never for ever, and in turns among salts."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.errors import RequestError
from stepwell.sched.queues import ServingOrder
from stepwell.sched.request import MAX_PRIORITY, Request
from tests.cache.builders import numbers
from tests.sched.rig import Rig


def request(name: str, tokens: int = 10, salt: str = "", priority: int = 0) -> Request:
    return Request(name, np.arange(tokens, dtype=np.int32), salt=salt, priority=priority)


def started(rig: Rig) -> list[str]:
    """Requests in the order of their first tokens' steps."""
    seen: dict[str, None] = {}
    for step in rig.steps:
        seen.update(dict.fromkeys(work.request_id for work in step.works))
    return list(seen)


class TestPriority:
    def test_the_lower_number_goes_first_and_equals_as_they_came(self) -> None:
        rig = Rig(seqs=1)
        for name, priority in (("a", 0), ("b", 2), ("c", 0), ("d", -1), ("e", 2)):
            rig.submit(name, numbers(20, ord(name)), 2, priority=priority)
        rig.run()
        assert started(rig) == ["d", "a", "c", "b", "e"]

    def test_of_those_who_run_the_less_urgent_is_preempted(self) -> None:
        rig = Rig(pages=24, host=0, seqs=2)
        rig.submit("late", numbers(30, 1), 40, priority=5)
        rig.step()
        rig.submit("urgent", numbers(30, 2), 40)
        rig.run()
        assert rig.loop.stats().preemptions > 0
        ends = [e.request_id for e in rig.events if type(e).__name__ == "Finished"]
        assert ends == ["urgent", "late"]
        rig.cold("urgent", "late")

    def test_prompts_of_the_urgent_have_the_budget(self) -> None:
        rig = Rig(budget=16)
        rig.submit("a", numbers(100, 1), priority=1)
        rig.step()
        rig.submit("b", numbers(30, 2))
        rig.step()
        assert [work.request_id for work in rig.steps[-1].works] == ["b"]
        rig.run()

    def test_waiting_is_worth_priority(self) -> None:
        """One step of priority for each `ageing` seconds, whoever comes meanwhile."""
        order = ServingOrder(10.0)
        waited = order.place(request("a", priority=3), 100.0)
        assert order.place(request("b"), 129.9) < waited < order.place(request("c"), 130.1)
        assert order.place(request("d", priority=-MAX_PRIORITY), 100.0 + 10 * (MAX_PRIORITY + 4)) > waited

    @pytest.mark.parametrize("priority", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1])
    def test_it_is_bounded(self, priority: int) -> None:
        rig = Rig()
        with pytest.raises(RequestError, match="between -1000 and 1000"):
            rig.submit("a", numbers(9), priority=priority)
        assert not rig.loop.busy


class TestTurns:
    def test_salts_take_turns_by_the_tokens_of_their_prompts(self) -> None:
        rig = Rig(seqs=1, fair=True)
        for number in range(4):
            rig.submit(f"a{number}", numbers(40, number), 1, salt="a")
        for number in range(6):
            rig.submit(f"b{number}", numbers(20, number), 1, salt="b")
        rig.run()
        assert started(rig) == ["a0", "b0", "b1", "a1", "b2", "b3", "a2", "b4", "b5", "a3"]

    def test_more_salts_below_one_key_are_no_more_turns(self) -> None:
        rig = Rig(seqs=1, fair=True)
        for number in range(3):
            rig.submit(f"a{number}", numbers(40, number), 1, salt=f"key:{number}")
        rig.submit("b", numbers(40, 9), 1, salt="other:0")
        rig.run()
        assert started(rig) == ["a0", "b", "a1", "a2"]

    def test_without_it_they_come_as_they_came(self) -> None:
        rig = Rig(seqs=1)
        for name, salt in (("a", "x"), ("b", "x"), ("c", "y")):
            rig.submit(name, numbers(40, ord(name)), 1, salt=salt)
        rig.run()
        assert started(rig) == ["a", "b", "c"]

    def test_one_salt_alone_is_served_as_it_came(self) -> None:
        order = ServingOrder(10.0, fair=True, tokens_per_s=100.0)
        places = [order.place(request(f"{i}", 10 * (i % 3 + 1), "a"), 0.0) for i in range(9)]
        assert places == sorted(places)

    def test_who_was_idle_has_saved_nothing_up_and_owes_nothing(self) -> None:
        """`b` comes after `a` has been served for long, and is neither before all of `a` nor behind it."""
        order = ServingOrder(10.0, fair=True, tokens_per_s=1.0)
        for i in range(50):
            order.served(request("", 10, "a"), order.place(request(f"{i}", 10, "a"), 0.0))
        a = [order.place(request("", 10, "a"), 0.0) for _ in range(3)]
        b = [order.place(request("", 10, "b"), 0.0) for _ in range(3)]
        assert b[0] < a[0] < b[1] < a[1] < b[2] < a[2]

    def test_what_is_aborted_before_it_is_served_is_no_turn(self) -> None:
        rig = Rig(seqs=1, fair=True)
        rig.submit("first", numbers(8, 1), 1, salt="a")
        rig.step()
        rig.submit("gone", numbers(60, 2), 1, salt="a")
        rig.loop.abort("gone")
        for number in range(4):
            rig.submit(f"a{number}", numbers(20, number), 1, salt="a")
            rig.submit(f"b{number}", numbers(20, number), 1, salt="b")
        rig.run()
        assert started(rig)[1:5] == ["b0", "a0", "b1", "a1"]

    def test_who_came_after_what_is_aborted_closes_up(self) -> None:
        """Nobody of the same salt who comes later still goes before."""
        rig = Rig(seqs=1, fair=True)
        rig.submit("first", numbers(8, 1), 1, salt="a")
        rig.step()
        rig.submit("gone", numbers(60, 2), 1, salt="a")
        rig.submit("a0", numbers(20, 3), 1, salt="a")
        rig.submit("b0", numbers(20, 4), 1, salt="b")
        rig.submit("b1", numbers(20, 5), 1, salt="b")
        rig.loop.abort("gone")
        rig.submit("a1", numbers(20, 6), 1, salt="a")
        rig.run()
        assert started(rig) == ["first", "b0", "a0", "b1", "a1"]

    def test_closing_up_saves_nothing_up(self) -> None:
        order = ServingOrder(10.0, fair=True, tokens_per_s=1.0)
        gone, later = request("gone", 90, "a", priority=5), request("later", 10, "a", priority=5)
        order.place(gone, 0.0)
        order.served(request("b", 200, "b"), (80.0, 9))
        place = order.place(later, 0.0)
        assert place[0] == 90.0 + 50.0
        assert order.closed_up(gone, later, place) == (80.0 + 50.0, place[1])
        assert order.closed_up(gone, request("other", 10, "b"), place) == place

    def test_what_was_served_and_then_aborted_was_a_turn(self) -> None:
        rig = Rig(seqs=1, fair=True)
        rig.submit("begun", numbers(60, 1), 9, salt="a")
        rig.step()
        rig.loop.abort("begun")
        rig.submit("a", numbers(20, 2), 1, salt="a")
        rig.submit("b", numbers(20, 3), 1, salt="b")
        rig.run()
        assert started(rig) == ["begun", "b", "a"]

    def test_priorities_of_one_salt_do_not_hold_each_other_up(self) -> None:
        order = ServingOrder(10.0, fair=True, tokens_per_s=1.0)
        background = [order.place(request("", 10, "a", priority=50), 0.0) for _ in range(20)]
        assert order.place(request("", 10, "a"), 0.0) < min(background)

    def test_what_it_remembers_is_bounded(self) -> None:
        order = ServingOrder(10.0, fair=True)
        for number in range(20_000):
            order.served(request("", 1, f"{number}"), order.place(request("", 1, f"{number}"), 0.0))
            order.served(request("", 2, "busy"), order.place(request("", 2, "busy"), 0.0))
        assert len(order._ends) <= 4096


def waits_of_a_quiet_caller(fair: bool) -> list[int]:
    """Prompts that are begun before each of its own, one of which comes with every ten of a caller that sends twice what is computed."""
    rig = Rig(seqs=1, fair=fair)
    for turn in range(8):
        for number in range(10):
            rig.submit(f"loud{turn}-{number}", numbers(40, 10 * turn + number), 1, salt="loud")
        rig.submit(f"quiet{turn}", numbers(40, 1000 + turn), 1, salt="quiet")
        for _ in range(15):
            rig.step()
    rig.run()
    begun = started(rig)
    return [begun.index(f"quiet{turn}") - 5 * turn for turn in range(8)]


def test_a_caller_that_sends_more_than_is_computed_starves_others_without_turns() -> None:
    """Why turns are there: the wait of a quiet caller grows for as long as the other one goes on."""
    alone, fair = waits_of_a_quiet_caller(fair=False), waits_of_a_quiet_caller(fair=True)
    assert alone[-1] > alone[0] + 20, alone
    assert max(fair) < alone[0], fair
