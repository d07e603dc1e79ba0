"""A pool in which what one account asks for delays only that account."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from stepwell.engine.fair_pool import QUICK, REST, FairPool


@pytest.fixture
def pool() -> Iterator[FairPool]:
    made = FairPool()
    yield made
    made.close()


def burn(seconds: float) -> None:
    """Use that much of a processor, however busy the machine is."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def test_results_and_errors_come_back(pool: FairPool) -> None:
    def broken() -> None:
        raise ValueError("no")

    assert pool.submit(b"a", lambda: 7).result(20) == 7
    with pytest.raises(ValueError, match="no"):
        pool.submit(b"a", broken).result(20)
    assert pool.submit(b"a", lambda: 8).result(20) == 8


def test_a_dear_account_leaves_one_thread_to_the_others(pool: FairPool) -> None:
    gate = threading.Event()
    pool.submit(b"dear", lambda: burn(2 * QUICK)).result(20)
    held = [pool.submit(b"dear", lambda: gate.wait(20)) for _ in range(31)]
    for _ in range(50):
        assert pool.submit(b"other", lambda: 1).result(20) == 1, "although all that `dear` asked for came first"
    assert not any(one.done() for one in held)
    gate.set()
    assert all(one.result(20) for one in held)


def test_who_has_used_least_goes_first_and_idle_time_is_not_saved_up() -> None:
    pool = FairPool(threads=1)
    order: list[str] = []

    def note(name: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            order.append(name)
            burn(seconds)

        return work

    pool.submit(b"a", note("a", 0.02)).result(20)
    gate = threading.Event()
    pool.submit(b"gate", lambda: gate.wait(20))
    waiting = [pool.submit(b"a", note("a", 0.005)) for _ in range(3)]
    waiting += [pool.submit(b"b", note("b", 0.005)) for _ in range(3)]
    gate.set()
    for one in waiting:
        one.result(20)
    assert order == ["a", "b", "b", "b", "a", "a", "a"]
    order.clear()
    gate.clear()
    pool.submit(b"gate", lambda: gate.wait(20))
    waiting = [pool.submit(b"new", note("new", 0.005)) for _ in range(6)]
    waiting += [pool.submit(b"a", note("a", 0.005)) for _ in range(6)]
    gate.set()
    for one in waiting:
        one.result(20)
    assert set(order[:6]) == {"a", "new"}, "who comes new begins where the others are"
    pool.close()


def test_behind_a_dear_piece_no_dear_one_begins_for_a_while_and_quick_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.engine.fair_pool.REST", 1e6)
    pool = FairPool()
    pool.submit(b"dear", partial(burn, 2 * QUICK)).result(20)
    late = pool.submit(b"dear", lambda: 1)
    for name in (b"other", b"new"):
        for _ in range(20):
            assert pool.submit(name, lambda: 2).result(20) == 2
    assert not late.done()
    pool.close()
    assert late.cancelled() and REST >= 1


def test_what_is_dear_begins_again_after_its_rest() -> None:
    pool = FairPool(threads=1)
    for _ in range(3):
        pool.submit(b"dear", partial(burn, 2 * QUICK)).result(20)
    pool.close()


def test_what_has_not_begun_is_dropped_at_the_end() -> None:
    pool = FairPool(threads=1)
    begun, gate = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return gate.wait(20)

    running = pool.submit(b"a", hold)
    late = pool.submit(b"a", lambda: 1)
    assert begun.wait(20)
    closing = threading.Thread(target=pool.close)
    closing.start()
    gate.set()
    closing.join(20)
    assert running.result(0) and late.cancelled()


def test_a_panic_ends_its_piece_and_not_the_thread() -> None:
    class Panic(BaseException):
        """As one of Rust comes through to Python."""

    def panics() -> None:
        raise Panic("out of everything")

    pool = FairPool(threads=1)
    with pytest.raises(Panic):
        pool.submit(b"a", panics).result(20)
    assert pool.submit(b"b", lambda: 1).result(20) == 1
    pool.close()
    assert pool.submit(b"b", lambda: 1).cancelled(), "nobody is there to do it"
