"""The whole engine against the laws: whatever is done to it, in whatever order, with whatever going wrong below it.

pytest tests/laws --laws-examples 5000      many examples, new ones each time
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.laws.driver import Driver, fuzz

FIXED = 60
STEPS = 50


class Drawn:
    """Numbers that Hypothesis draws, and can shrink."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def randint(self, a: int, b: int) -> int:
        return int(self._data.draw(st.integers(a, b)))


class EngineMachine(RuleBasedStateMachine):
    """Each rule is one action of the driver; the harness checks every law after every step."""

    driver: Driver

    @initialize(data=st.data(), seed=st.integers(0, 1 << 16))
    def start(self, data: st.DataObject, seed: int) -> None:
        self.driver = Driver(Drawn(data), seed)

    def _drawing(self, data: st.DataObject) -> Driver:
        self.driver.rng = Drawn(data)
        return self.driver

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self._drawing(data).submit()

    @rule(data=st.data(), turns=st.integers(1, 6))
    def step(self, data: st.DataObject, turns: int) -> None:
        for _ in range(turns):
            self._drawing(data).step()

    @precondition(lambda self: self.driver.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._drawing(data).abort()

    @precondition(lambda self: self.driver.harness.loop.queues.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self._drawing(data).preempt()

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        self._drawing(data).flush()

    @precondition(lambda self: self.driver.harness.loop.queues.running)
    @rule(data=st.data())
    def spoil(self, data: st.DataObject) -> None:
        self._drawing(data).spoil()

    @precondition(lambda self: self.driver.harness.mover.lost)
    @rule()
    def deliver(self) -> None:
        self.driver.harness.deliver()

    def teardown(self) -> None:
        self.driver.harness.drain()


def test_no_order_of_events_breaks_a_law(pytestconfig: pytest.Config) -> None:
    wanted = pytestconfig.getoption("--laws-examples")
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=wanted or FIXED,
            stateful_step_count=STEPS,
            derandomize=not wanted,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_random_run_breaks_a_law(pytestconfig: pytest.Config) -> None:
    """Plain random runs: longer and faster, though they do not shrink."""
    wanted = pytestconfig.getoption("--laws-examples")
    first = random.randrange(1 << 32) if wanted else 0
    for seed in range(first, first + (wanted or FIXED)):
        try:
            fuzz(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_random_runs_go_everywhere() -> None:
    """Loads, failures, retreats and preemptions all happen in the runs above, or they would prove nothing."""
    seen: dict[str, int] = {}
    for seed in range(25):
        harness = fuzz(seed).harness
        stats = harness.stats()
        tally = stats.tally
        counts = {"device": tally.device, "host": tally.host, "readmissions": tally.readmissions}
        counts |= {"boundaries": tally.boundaries, "preemptions": stats.preemptions, **harness.mover.tally}
        counts |= {reason.value: count for reason, count in tally.reasons.items()}
        for told in harness.told.values():
            end = told.finished.reason if told.finished else "open"
            seen[end] = seen.get(end, 0) + 1
        for name, count in counts.items():
            seen[name] = seen.get(name, 0) + count
    wanted = (
        "device",
        "host",
        "readmissions",
        "boundaries",
        "preemptions",
        "failed",
        "delayed",
        "duplicated",
        "dropped",
    )
    ends = ("length", "stop", "abort", "error", "load_failed(kv)", "load_failed(state)")
    assert not [name for name in wanted + ends if not seen.get(name)], seen
