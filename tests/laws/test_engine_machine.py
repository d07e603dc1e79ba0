"""The whole engine against the laws: whatever is done to it, in whatever order, with whatever going wrong below it.

pytest tests/laws --laws-examples 5000      many examples, new ones each time
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from stepwell.cache.reuse.outcome import Reason
from stepwell.testing.harness import Harness
from tests.amounts import amount
from tests.laws.driver import Driver, fuzz

FIXED = 50
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

    @rule(data=st.data())
    def hint(self, data: st.DataObject) -> None:
        self._drawing(data).hint()

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

    @rule(data=st.data())
    def corrupt(self, data: st.DataObject) -> None:
        self.driver.corrupt(Drawn(data))

    @precondition(lambda self: self.driver.harness.mover.lost)
    @rule()
    def deliver(self) -> None:
        self.driver.harness.deliver()

    def teardown(self) -> None:
        self.driver.end()


@pytest.mark.more
def test_no_order_of_events_breaks_a_law(pytestconfig: pytest.Config) -> None:
    wanted = pytestconfig.getoption("--laws-examples")
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=wanted or amount(pytestconfig, 15, FIXED),
            stateful_step_count=STEPS,
            derandomize=not wanted,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.more
def test_no_random_run_breaks_a_law(pytestconfig: pytest.Config) -> None:
    """Plain random runs: longer and faster, though they do not shrink. Were they to miss loads or failures, they would prove nothing."""
    wanted = pytestconfig.getoption("--laws-examples")
    first = random.randrange(1 << 32) if wanted else 0
    seen: Counter[str] = Counter()
    for seed in range(first, first + (wanted or amount(pytestconfig, 20, FIXED))):
        try:
            harness = fuzz(seed).harness
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += _happened(harness)
    missing = [name for name in MUST_HAPPEN if not seen[name]]
    assert not missing, f"these never happened: {missing}; {seen}"


@pytest.mark.more
def test_no_random_run_reads_what_is_condemned(pytestconfig: pytest.Config) -> None:
    """The same with bytes that go wrong in any tier of any rank, audits, and quarantines under whoever reads."""
    wanted = pytestconfig.getoption("--laws-examples")
    # among the next are some whose audits find what has gone wrong
    first = random.randrange(1 << 32) if wanted else 213
    seen: Counter[str] = Counter()
    for seed in range(first, first + (wanted or amount(pytestconfig, 12, FIXED * 3 // 5))):
        try:
            driver = fuzz(seed, ranks=1 + (seed % 5 == 4), corrupt=12, waits=16)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        stats = driver.harness.stats()
        seen += driver.happened
        seen.update(audits=stats.audits, mismatches=stats.audit_mismatches, quarantined=stats.quarantined)
        seen.update(misled=len(driver.harness.suspicion.misled), returns=driver.harness.loop.queues.returns)
    missing = [name for name in MUST_GO_WRONG if not seen[name]]
    assert not missing, f"these never happened: {missing}; {seen}"


MUST_GO_WRONG = (
    *("cached bytes of device", "cached bytes of host", "cached bytes of disk", "copies condemned by hand"),
    "loads condemned",
    *("audits", "mismatches", "quarantined", "misled"),
)

MUST_HAPPEN = (
    *(
        "device",
        "host",
        "boundaries",
        "readmissions",
        "preemptions",
        "coalesced",
        "failed",
        "delayed",
        "duplicated",
        "dropped",
    ),
    *("length", "stop", "abort", "error", Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE, Reason.NOT_READ),
)


def _happened(harness: Harness) -> Counter[str]:
    stats, tally = harness.stats(), harness.stats().tally
    seen = Counter(told.finished.reason for told in harness.told.values() if told.finished)
    seen.update(harness.mover.tally)
    seen.update(tally.reasons)
    seen.update(device=tally.device, host=tally.host, readmissions=tally.readmissions, coalesced=tally.coalesced)
    seen.update(boundaries=tally.boundaries, preemptions=stats.preemptions)
    return seen
