"""Which rank is at fault: who was killed before who fails because of that, who is silent, who computed something else."""

from __future__ import annotations

from stepwell.engine.ranks.watch import Judge
from stepwell.engine.ranks.wire import Alive, Failed, State

STATE = State({}, {}, None, True, None)


def alive(digests: dict[int, int] | None = None) -> Alive:
    return Alive(1, 1, digests or {}, STATE)


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
