"""A pool in which what one caller asks for delays only that caller, and what is dear of that only its own kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from stepwell.engine.grammar.fair_pool import Counter, FairPool

QUICK, TOGETHER = 0.01, 32


@dataclass(frozen=True, slots=True)
class Done:
    """What comes of an order: who served it, and what that is said to have cost."""

    name: str
    desk: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Order:
    """`held`: until that is set. `error`: is raised."""

    name: str = ""
    seconds: float = 0.0
    held: threading.Event | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class Desks:
    """Counters that note what they are asked, message by message."""

    served: list[str] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    holding: threading.Event = field(default_factory=threading.Event)

    def desk(self, kind: str) -> Callable[[Sequence[Order]], Iterator[Done]]:
        def serve(orders: Sequence[Order]) -> Iterator[Done]:
            self.together.append(len(orders))
            for order in orders:
                if order.held is not None:
                    self.holding.set()
                    assert order.held.wait(20)
                if order.error is not None:
                    raise order.error
                self.served.append(order.name)
                yield Done(order.name, kind, order.seconds)

        return serve

    def pool(self) -> FairPool[Order, Done]:
        return FairPool(
            Counter(self.desk("quick"), TOGETHER, lambda pace: pace <= QUICK),
            Counter(self.desk("dear"), 1, lambda pace: pace > QUICK),
        )


@pytest.fixture
def desks() -> Desks:
    return Desks()


@pytest.fixture
def pool(desks: Desks) -> Iterator[FairPool[Order, Done]]:
    made = desks.pool()
    yield made
    made.close()


def test_results_and_errors_come_back(pool: FairPool[Order, Done]) -> None:
    assert pool.submit("all", b"a", Order("one")).result(20).name == "one"
    with pytest.raises(ValueError, match="no"):
        pool.submit("all", b"a", Order(error=ValueError("no"))).result(20)
    assert pool.submit("all", b"a", Order("two")).result(20).name == "two"


def test_a_dear_account_has_a_desk_apart(pool: FairPool[Order, Done]) -> None:
    gate = threading.Event()
    assert pool.submit("all", b"dear", Order(seconds=2 * QUICK)).result(20).desk == "quick", "nobody knew yet"
    held = [pool.submit("all", b"dear", Order(held=gate)) for _ in range(31)]
    for _ in range(50):
        assert pool.submit("all", b"other", Order()).result(20).desk == "quick", (
            "although all that `dear` asked for came first"
        )
    assert not any(one.done() for one in held)
    gate.set()
    assert [one.result(20).desk for one in held[:3]] == ["dear"] * 3


def test_an_account_that_was_dear_returns_once_its_pieces_have_been_quick_for_a_while(
    pool: FairPool[Order, Done],
) -> None:
    pool.submit("all", b"a", Order(seconds=2 * QUICK)).result(20)
    desks = [pool.submit("all", b"a", Order(seconds=QUICK / 2)).result(20).desk for _ in range(12)]
    assert desks[:2] == ["dear", "dear"] and desks[-1] == "quick"


def test_who_has_used_least_goes_first_and_idle_time_is_not_saved_up(desks: Desks) -> None:
    pool = desks.pool()
    gate = threading.Event()

    def waiting(*accounts: bytes) -> list[str]:
        """In which order pieces of these are served that wait together at the desk for dear ones."""
        gate.clear()
        desks.holding.clear()
        pool.submit("all", b"gate", Order(seconds=2 * QUICK)).result(20)
        ahead = pool.submit("all", b"gate", Order("gate", held=gate))
        assert desks.holding.wait(20)
        orders = [pool.submit("all", name, Order(name.decode(), seconds=QUICK)) for name in accounts]
        desks.served.clear()
        gate.set()
        for one in [ahead, *orders]:
            one.result(20)
        assert desks.served[0] == "gate"
        return desks.served[1:]

    pool.submit("all", b"a", Order("a", seconds=5 * QUICK)).result(20)
    pool.submit("all", b"b", Order("b", seconds=2 * QUICK)).result(20)
    assert waiting(b"a", b"a", b"b", b"b") == ["b", "b", "a", "a"]
    pool.submit("all", b"new", Order("new", seconds=2 * QUICK)).result(20)
    assert set(waiting(*[b"new"] * 6, *[b"a"] * 6)[:6]) == {"a", "new"}, "who comes new begins where the others are"
    pool.close()


def test_quick_pieces_that_wait_are_taken_together_up_to_a_number(desks: Desks) -> None:
    pool, gate = desks.pool(), threading.Event()
    first = pool.submit("all", b"gate", Order(held=gate))
    assert desks.holding.wait(20)
    others = [pool.submit("all", b"%d" % i, Order(str(i))) for i in range(TOGETHER + 3)]
    gate.set()
    first.result(20)
    assert [one.result(20).name for one in others] == [str(i) for i in range(TOGETHER + 3)]
    assert desks.together == [1, TOGETHER, 3]
    pool.close()


def test_a_desk_that_fails_fails_what_it_was_given_and_has_not_done(desks: Desks) -> None:
    pool, gate = desks.pool(), threading.Event()
    pool.submit("all", b"gate", Order(held=gate))
    assert desks.holding.wait(20)
    orders = Order("good"), Order(error=OSError("gone")), Order("behind")
    good, bad, behind = (pool.submit("all", b"a", order) for order in orders)
    gate.set()
    assert good.result(20).name == "good"
    for one in (bad, behind):
        with pytest.raises(OSError, match="gone"):
            one.result(20)
    pool.close()


def test_what_has_not_begun_is_dropped_at_the_end(desks: Desks) -> None:
    pool, gate = desks.pool(), threading.Event()
    running = pool.submit("all", b"a", Order("running", held=gate))
    assert desks.holding.wait(20)
    late = pool.submit("all", b"a", Order())
    closing = threading.Thread(target=pool.close)
    closing.start()
    gate.set()
    closing.join(20)
    assert running.result(0).name == "running" and late.cancelled()
    assert pool.submit("all", b"b", Order()).cancelled(), "nobody is there to do it"


def test_a_panic_ends_its_piece_and_not_the_thread(pool: FairPool[Order, Done]) -> None:
    class Panic(BaseException):
        """As one of Rust comes through to Python."""

    with pytest.raises(Panic):
        pool.submit("all", b"a", Order(error=Panic("out of everything"))).result(20)
    assert pool.submit("all", b"b", Order("on")).result(20).name == "on"


def test_callers_have_equal_turns_however_many_kinds_each_asks_for(desks: Desks) -> None:
    """One caller sends 20 grammars, another one: the second does not wait for a turn of each of them."""
    pool, gate = FairPool(Counter(desks.desk("only"))), threading.Event()
    ahead = pool.submit("gate", b"", Order("gate", held=gate))
    assert desks.holding.wait(20)
    many = [pool.submit("many", b"%d" % i, Order("many", seconds=1.0)) for i in range(20)]
    one = [pool.submit("one", b"only", Order("one", seconds=1.0)) for _ in range(3)]
    gate.set()
    for piece in [ahead, *many, *one]:
        piece.result(20)
    assert desks.served[1:7].count("one") == 3
    pool.close()


def test_nothing_runs_before_the_first_order(desks: Desks) -> None:
    before = threading.active_count()
    pool = desks.pool()
    assert threading.active_count() == before
    pool.close()
