"""Which rank is at fault: who was killed before who fails because of that, who is silent, who computed something else."""

from __future__ import annotations

from stepwell.engine.ranks.watch import Judge
from stepwell.engine.ranks.wire import Alive, Failed, Progress, State

STATE = State({}, {}, None, True, None)


IDLE = Progress(1, 0, 1, 1, False)


def alive(digests: dict[int, int] | None = None, progress: Progress = IDLE) -> Alive:
    return Alive(progress, digests or {}, STATE)


def test_all_is_well_while_all_are_heard() -> None:
    judge = Judge(2, 4.0, now=0.0)
    for at in range(1, 20):
        for rank in range(2):
            judge.hear(rank, alive({16 * at: 7}), float(at))
        assert not judge.fault({}, at + 0.5)


def test_a_silent_rank_is_named_once_the_timeout_is_over() -> None:
    judge = Judge(3, 4.0, now=0.0)
    judge.hear(0, alive(), 3.0)
    judge.hear(2, alive(), 3.0)
    assert not judge.fault({}, 4.0)
    assert judge.fault({}, 4.1) == "rank 1 gave no sign of life for 4 s (--worker-timeout)"
    assert not Judge(2, 0, now=0.0).fault({}, 1e6), "0: any time"


def test_who_was_killed_is_named_before_who_fails_because_of_it() -> None:
    judge = Judge(2, 4.0, now=0.0)
    judge.hear(0, Failed("RuntimeError: connection reset", False), 1.0)
    assert not judge.fault({}, 1.1), "the cause may show yet"
    assert judge.fault({1: -9}, 1.2) == "rank 1 was killed by signal 9"


def test_the_first_to_fail_is_named() -> None:
    judge = Judge(3, 4.0, now=0.0)
    judge.hear(2, Failed("OutOfMemoryError: none left", False), 1.0)
    judge.hear(0, Failed("RuntimeError: connection reset", False), 1.05)
    assert judge.fault({0: 1, 2: 1}, 1.4) == "rank 2 has failed: OutOfMemoryError: none left"


def test_a_rank_that_ends_without_a_word_is_named() -> None:
    assert Judge(2, 4.0, now=0.0).fault({1: 3}, 0.1) == "rank 1 ended with status 3"


def test_a_rank_that_computes_something_else_is_named() -> None:
    judge = Judge(3, 4.0, now=0.0)
    for rank, digest in enumerate((5, 5, 6)):
        judge.hear(rank, alive({16: 1, 32: digest}), 1.0)
    assert judge.fault({}, 1.0) == "rank 2 computed other results than the others within the first 32 steps"


def test_of_two_that_differ_the_one_is_named_whose_tokens_are_not_used() -> None:
    judge = Judge(2, 4.0, now=0.0)
    judge.hear(1, alive({16: 1}), 1.0)
    judge.hear(0, alive({16: 2}), 1.0)
    assert judge.fault({}, 1.0).startswith("rank 1 computed other results")


def stepping(orders: int, sums: int = 0, done: int = 0) -> Alive:
    return alive(progress=Progress(orders, sums, done, 1, True))


def test_a_rank_that_lives_and_hangs_is_named_once_others_have_waited_for_the_timeout() -> None:
    judge = Judge(3, 4.0, now=0.0)
    for beat in range(1, 60):
        now = beat / 4
        for rank, sums in enumerate((12, 11, 12)):
            judge.hear(rank, stepping(7, sums), now)
        fault = judge.fault({}, now)
        assert bool(fault) == (now > 4.25), now
    assert fault == "rank 1 came no further for 4 s while others did (--worker-timeout)"


def test_who_has_fewer_orders_is_behind_whatever_it_has_summed() -> None:
    judge = Judge(2, 1.0, now=0.0)
    for beat in range(10):
        judge.hear(0, stepping(6, 40, 4), beat / 4)
        judge.hear(1, stepping(5, 48, 4), beat / 4)
    assert judge.fault({}, 2.5).startswith("rank 1 came no further")


def test_a_rank_that_has_not_done_what_an_idle_one_has_is_named() -> None:
    judge = Judge(2, 1.0, now=0.0)
    for beat in range(10):
        judge.hear(0, alive(), beat / 4)
        judge.hear(1, alive(progress=Progress(1, 0, 1, 1, True)), beat / 4)
    assert judge.fault({}, 2.5).startswith("rank 1 came no further")


def test_nobody_hangs_who_comes_further_though_it_is_behind() -> None:
    judge = Judge(2, 1.0, now=0.0)
    for beat in range(100):
        judge.hear(0, stepping(7, 300), beat / 4)
        judge.hear(1, stepping(7, beat), beat / 4)
        assert not judge.fault({}, beat / 4)


def test_a_rank_that_is_late_is_not_blamed_for_the_time_in_which_all_were_busy() -> None:
    judge = Judge(2, 4.0, now=0.0)
    for beat in range(100):  # all compile a kernel
        for rank in range(2):
            judge.hear(rank, stepping(7, 3), beat / 4)
        assert not judge.fault({}, beat / 4)
    for beat in range(100, 110):  # the first is done with that
        judge.hear(0, stepping(7, 4), beat / 4)
        judge.hear(1, stepping(7, 3), beat / 4)
        assert not judge.fault({}, beat / 4)


def test_ranks_that_all_hang_end_after_a_longer_time() -> None:
    judge = Judge(2, 4.0, now=0.0)
    for beat in range(4 * 70):
        for rank in range(2):
            judge.hear(rank, stepping(7, 3), beat / 4)
        assert bool(fault := judge.fault({}, beat / 4)) == (beat > 4 * 60), beat
    assert fault == "all ranks have been busy for 60 s without coming further"


def test_any_time_is_allowed_where_the_timeout_is_0() -> None:
    judge = Judge(2, 0.0, now=0.0)
    judge.hear(0, stepping(7, 4), 1.0)
    judge.hear(1, stepping(7, 3), 1.0)
    assert not judge.fault({}, 1e6)
