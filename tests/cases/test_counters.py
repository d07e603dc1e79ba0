"""Every counter that is shown of an engine moves: one that nothing can move tells whoever watches it something untrue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from stepwell.base.clock import WallClock
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.engine.process.messages import Batch, Stats, decode_answer, encode
from stepwell.engine.process.stats import stats_message
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.retention import Subject
from stepwell.server.observe.metrics import Metrics
from stepwell.testing import telltale
from stepwell.testing.faults import FaultPlan, InstantMover, Where
from stepwell.testing.harness import Harness
from tests.cache.builders import numbers
from tests.cases.serving import DEAR, PROMPT, VOCAB, ask, engine, rules, submit
from tests.cases.test_exact_fit import PAGES, shelf
from tests.laws.driver import fuzz
from tests.laws.test_external import Engine as OutsideEngine

OF_THE_SERVER = (
    "http_errors",
    "empty_completions",
    "generation_tokens",
    "look_ahead",
    "disk_",
    "kernels_",
    "seconds_",
    "cache_event_",
    "engine_hangs",
    "engine_restarts",
)
"""Series that the server counts itself, the disk's store, a GPU's worker or a publisher of events; and the time of decisions, which stands
still here."""
STAYS = f'stepwell_admissions_total{{reason="{Reason.OFF_CHUNK_GRID.value}"}}'
"""What the split of a chunk abolishes: it is shown so that everyone sees that it stays 0."""


def shown(harness: Harness) -> Counter[str]:
    """What /metrics says after all that `harness` has served, as the server would have counted it."""
    metrics = Metrics()
    sent = encode(Batch([], stats_message(harness.stats())))  # as it comes over the wire
    heard = decode_answer(sent)
    assert isinstance(heard, Batch) and heard.stats is not None
    message: Stats = heard.stats
    metrics.watch(lambda: message, lambda: True)
    for told in harness.told.values():
        if told.outcome is not None:
            metrics.admitted(told.outcome)
        if told.finished is not None:
            metrics.finished(told.finished.reason, empty=False)
    lines = re.findall(r"^(stepwell_\w+_total(?:\{.*\})?) (\S+)$", metrics.render().decode(), re.MULTILINE)
    return Counter({name: float(value) for name, value in lines if not any(word in name for word in OF_THE_SERVER)})  # type: ignore[misc]


def without_room_for_a_load(whole: bool = False, left: int = 3) -> Harness:
    """A neighbour's prompt leaves the hit its place, and a load none."""
    harness = shelf(20, whole, own_image=False)
    free = PAGES - harness.loop.directory.use(Tier.DEVICE).cached
    submit(harness, "neighbour", numbers(4 * (free - left) - 1, 7), 1, write_cache=False)
    harness.step()
    submit(harness, "a", PROMPT, 1)
    harness.drain()
    return harness


def fetched_twice() -> Harness:
    harness = engine(rules(60, 200, clean=1.0), FaultPlan().delay(Where(source=Tier.HOST), polls=3))
    ask(harness, "first", PROMPT)
    harness.flush(Tier.DEVICE, demote_first=True)
    for number in (1, 2):
        harness.loop.prefetch(number, Subject("", PROMPT))
    harness.drain()
    return harness


def fetched_in_part() -> Harness:
    """Two rungs of a prompt are in host; a neighbour that writes leaves room for the nearer one alone."""
    harness = engine(rules(24, 200, interval=20, clean=1.0))
    ask(harness, "first", PROMPT, 1)
    harness.flush(Tier.DEVICE, demote_first=True)
    submit(harness, "neighbour", numbers(62, 5), 20, write_cache=False)
    harness.step()
    harness.loop.prefetch(1, Subject("", PROMPT))
    harness.drain()
    return harness


def too_little_to_load() -> Harness:
    """Host has more of a prompt than the device, but less than a load is worth."""
    harness = engine(rules(60, 200, interval=20, clean=1.0, min_load=30))
    ask(harness, "first", PROMPT, 1)
    harness.flush(Tier.DEVICE, demote_first=True, keep=20)
    ask(harness, "again", PROMPT, 1)
    return harness


def kv_from_host_under_a_state_of_the_device() -> Harness:
    harness = shelf(16, whole=False, own_image=False)
    submit(harness, "a", PROMPT, 1)
    harness.drain()
    return harness


def unreadable_on_disk() -> Harness:
    """What is on disk alone cannot be read."""
    faults = FaultPlan().fail(Where("kv", Tier.DISK)).fail(Where("image", Tier.DISK))
    harness = engine(rules(60, 200, disk=400, clean=1.0), faults, costs=DEAR)
    ask(harness, "first", PROMPT, 1)
    harness.flush(Tier.DEVICE, demote_first=True)
    harness.drain()
    harness.flush(Tier.HOST)
    ask(harness, "again", PROMPT, 1)
    return harness


def external(faults: FaultPlan | None = None) -> Harness:
    """A prompt comes back from an external store, or a leg of it fails."""
    outside = OutsideEngine(faults=faults)
    outside.ask()
    outside.harness.flush(Tier.DEVICE)
    outside.ask()
    return outside.harness


SEEDS = (59, 158, 206, 0, 41, 66, 22, 25, *range(1, 12))
"""In the first three an audit finds a wrong byte; the others make up for what a change of the engine may do to these."""


def runs() -> Iterator[Harness]:
    yield from (without_room_for_a_load(), without_room_for_a_load(True, 2), fetched_twice(), fetched_in_part())
    yield from (too_little_to_load(), kv_from_host_under_a_state_of_the_device(), unreadable_on_disk())
    yield external()
    for leg in ("kv", "image"):
        yield external(FaultPlan().fail(Where(leg, Tier.EXTERNAL), count=1))
    for seed in SEEDS:
        yield fuzz(seed, 60, hints=(4, 30)[seed % 2], corrupt=(0, 12)[seed // 2 % 2]).harness


def test_every_counter_of_an_engine_moves() -> None:
    seen: Counter[str] = Counter()
    still: list[str] = []
    for harness in runs():
        seen.update(shown(harness))
        still = [name for name, value in seen.items() if not value]
        if still == [STAYS]:
            break
    assert len(seen) > 50 and still == [STAYS]


def test_the_time_that_decisions_take_is_counted() -> None:
    cache = rules()
    memory = telltale.Memory(cache.geometry, cache.device_pages, cache.host_slots, 2)
    runner = telltale.TellTaleRunner(memory, cache.geometry, VOCAB)
    loop = EngineLoop(
        cache, SchedConfig(2, 64, 1 << 20, 8, vocab=VOCAB), runner, InstantMover(memory.copy), WallClock()
    )
    loop.submit(Request("a", PROMPT, SamplingParams(4)))
    while loop.busy:
        loop.step()
    assert loop.stats().sched_seconds > 0


@pytest.mark.parametrize(
    ("run", "series"),
    [
        (without_room_for_a_load, 'stepwell_admissions_total{reason="no_room"}'),
        (without_room_for_a_load, 'stepwell_recomputed_tokens_total{lost_to="no_room"}'),
        (fetched_twice, 'stepwell_prefetches_total{status="busy"}'),
        (fetched_in_part, 'stepwell_prefetches_total{status="partial"}'),
        (too_little_to_load, 'stepwell_admissions_total{reason="too_small"}'),
        (too_little_to_load, 'stepwell_recomputed_tokens_total{lost_to="too_small"}'),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_random_runs_hardly_meet(run: object, series: str) -> None:
    assert callable(run)
    assert shown(run())[series] > 0
