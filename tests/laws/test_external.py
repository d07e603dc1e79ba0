"""Routes by way of an external store: each gives the cold answer (the harness judges every one), and is proven taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.external.ledger import Saving
from stepwell.cache.moves import Report, Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.faults import LIVE, FaultPlan, Where
from stepwell.testing.harness import Harness
from stepwell.testing.outside import OutsideStore

BLOCK, CHUNK = 4, 16
COSTS = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=1e-6)
PROMPT = np.arange(100, 190, dtype=np.int32)


class Engine:
    """A harness over an external store, asked one prompt after the other."""

    def __init__(
        self, pages: int = 80, host: int = 0, ranks: int = 1, faults: FaultPlan | None = None, drops: bool = False
    ) -> None:
        geometry = telltale.geometry(BLOCK, BLOCK)
        cache = CacheConfig(geometry, pages, host, chunk=CHUNK, interval=32, external_chunk=CHUNK, external_drops=drops)
        sched = SchedConfig(max_num_seqs=3, max_num_batched_tokens=32, lookup_timeout=0.02, load_timeout=0.05)
        self.harness = Harness(cache, sched, faults, costs=COSTS, ranks=ranks, least=CHUNK)
        self.count = 0

    @property
    def store(self) -> OutsideStore:
        assert self.harness.outside is not None
        return self.harness.outside

    def ask(self, prompt: np.ndarray = PROMPT, salt: str = "", tokens: int = 3) -> AdmissionOutcome:
        """How it was resumed; everything that follows is done as well."""
        name = self.begin(prompt, salt, tokens)
        self.harness.drain()
        told = self.harness.told[name]
        assert told.outcome is not None and told.finished is not None and told.finished.reason == "length"
        return told.outcome

    def begin(self, prompt: np.ndarray = PROMPT, salt: str = "", tokens: int = 3) -> str:
        self.count += 1
        self.harness.submit(Request(f"r{self.count}", prompt, SamplingParams(max_tokens=tokens), salt))
        return f"r{self.count}"

    def keep(self, tokens: int) -> None:
        """Have the device hold the first `tokens` tokens and a rung there, and nothing else."""
        self.harness.flush(Tier.DEVICE)
        found = self.ask(PROMPT[: tokens + 1], tokens=1)
        assert found.boundary == 0 or found.external, found
        self.harness.flush(Tier.DEVICE, keep=tokens)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.sampled(6)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("hit", range(0, 64, BLOCK))
def test_a_load_begins_at_any_hit_inside_a_chunk(hit: int, ranks: int, drops: bool) -> None:
    engine = Engine(ranks=ranks, drops=drops)
    assert engine.ask().recomputed == 90
    if hit:
        engine.store.objects, kept = [{} for _ in range(ranks)], engine.store.objects
        engine.keep(hit)
        engine.store.objects = kept
    else:
        engine.harness.flush(Tier.DEVICE)
    outcome = engine.ask()
    assert (outcome.hit, outcome.boundary, outcome.state_tier) == (hit, 80, Tier.EXTERNAL)
    assert (outcome.device, outcome.external, outcome.recomputed) == (
        hit,
        80 - hit,
        10,
    )  # the partial chunk was resident
    again = engine.ask()
    assert (again.device, again.external, again.recomputed) == (88, 0, 2)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.sampled(6)
@pytest.mark.parametrize("hit", range(BLOCK, 64, BLOCK))
def test_a_live_reader_of_the_shared_pages_is_not_disturbed(hit: int, drops: bool) -> None:
    engine = Engine(drops=drops)
    engine.ask()
    engine.store.objects, kept = [{}], engine.store.objects
    engine.keep(hit)
    engine.store.objects = kept
    other = np.concatenate([PROMPT[:hit], np.array([7, 8, 9], np.int32)])
    reader = engine.begin(other, tokens=40)
    for _ in range(4):
        engine.harness.step()
    assert engine.harness.loop.queues.find_running(reader) is not None
    assert engine.ask().external == 80 - hit


def test_two_engines_share_what_one_has_stored() -> None:
    engine = Engine(ranks=2)
    engine.ask()
    engine.harness.restart()
    outcome = engine.ask()
    assert (outcome.device, outcome.external, outcome.state_tier) == (0, 80, Tier.EXTERNAL)
    assert engine.ask(salt="another").external == 0


def test_native_tiers_serve_what_they_have_and_the_store_the_rest() -> None:
    engine = Engine(host=80)
    engine.ask()
    engine.harness.flush(Tier.DEVICE, demote_first=True)
    engine.harness.flush(Tier.HOST, keep=36)
    outcome = engine.ask()
    assert (outcome.device, outcome.host, outcome.external, outcome.recomputed) == (0, 32, 48, 10)


def test_a_gain_below_the_least_asks_nobody() -> None:
    engine = Engine()
    engine.ask()
    engine.harness.flush(Tier.DEVICE, keep=80)
    asked = engine.store.asked
    engine.ask()
    assert engine.store.asked == asked


Harm = Callable[[Engine], object]
HARM: dict[str, Harm] = {
    "a shard of KV is evicted": lambda engine: engine.store.lose("kv", 1, 1),
    "a shard of the state is evicted": lambda engine: engine.store.lose("image", 9, 1),
    "all states are evicted": lambda engine: [engine.store.lose("image", 9, rank) for rank in (0, 1)],
    "KV is garbage": lambda engine: engine.store.spoil("kv", 1),
    "a state is garbage": lambda engine: engine.store.spoil("image", 0),
    "the server is restarted": lambda engine: engine.store.wipe(),
    "the server hangs": lambda engine: setattr(engine.store, "silent", True),
}


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("hit", [0, 20, 32])
@pytest.mark.parametrize("harm", HARM)
def test_what_breaks_between_lookup_and_load_costs_the_load_alone(harm: str, hit: int, drops: bool) -> None:
    engine = Engine(ranks=2, drops=drops)
    engine.ask()
    if hit:
        engine.store.objects, kept = [{}, {}], engine.store.objects
        engine.keep(hit)
        engine.store.objects = kept
    else:
        engine.harness.flush(Tier.DEVICE)
    for plan in engine.harness.ranks.plans:
        plan.delay(Where(source=Tier.EXTERNAL), polls=3)
    name = engine.begin()
    for _ in range(20):
        engine.harness.step()
        if name in engine.harness.loop.queues.parked:
            break
    assert name in engine.harness.loop.queues.parked
    HARM[harm](engine)
    engine.harness.drain()
    outcome = engine.harness.told[name].outcome
    assert outcome is not None
    assert (outcome.boundary, outcome.hit) == (hit, hit)
    assert outcome.reason in (Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE)
    assert dict(outcome.lost)[Loss.FAILED_LEG] == 80 - hit
    engine.store.silent = False
    engine.harness.flush(Tier.DEVICE)
    engine.ask()  # finds out what else is gone, and stores it again
    engine.harness.flush(Tier.DEVICE)
    assert engine.ask().external == 80


def test_a_server_that_never_answers_delays_nobody_else() -> None:
    engine = Engine()
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.store.silent = True
    slow = engine.begin()
    quick = engine.begin(np.arange(5, dtype=np.int32))
    for _ in range(12):
        engine.harness.step()
    told = engine.harness.told
    assert told[quick].finished is not None and told[slow].outcome is None
    engine.harness.drain()
    outcome = told[slow].outcome
    assert outcome is not None and outcome.cached == 0


def test_a_late_answer_is_released() -> None:
    engine = Engine()
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.store.delay, engine.store.deaf = 40, True  # twice the deadline
    assert engine.ask().external == 0
    engine.store.delay = 0
    engine.harness.flush(Tier.DEVICE)
    assert engine.ask().external == 80
    assert not engine.store.leases


def test_an_aborted_request_lets_go_of_its_lease() -> None:
    engine = Engine()
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.harness.faults.delay(Where(source=Tier.EXTERNAL), polls=5, count=2)
    for turns in range(1, 8):
        name = engine.begin()
        for _ in range(turns):
            engine.harness.step()
        engine.harness.abort(name)
        engine.harness.drain()
        engine.harness.step()
        assert not engine.store.leases
        engine.harness.flush(Tier.DEVICE)


def test_a_lookup_of_the_first_rank_alone_finds_out_as_it_loads() -> None:
    engine = Engine(ranks=2)
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.store.joint.ranks = 1
    engine.store.lose("kv", 9, rank=1)
    outcome = engine.ask()
    assert (outcome.external, outcome.reason) == (0, Reason.LOAD_FAILED_KV)
    engine.harness.flush(Tier.DEVICE)
    assert engine.ask().external == 80  # it has been stored again


def test_ranks_that_have_lost_different_states_agree_on_what_all_have() -> None:
    """Rungs at 32, 64 and 80 are in the store; each rank has lost another one of the two deepest."""
    engine = Engine(ranks=2)
    engine.ask()
    engine.ask(PROMPT[:66])
    engine.harness.flush(Tier.DEVICE)
    store = engine.store
    ends = sorted(one.name.end for key, one in store.objects[0].items() if key[0] == "image")
    assert ends[-3:] == [32, 64, 80]
    lose(store, 0, 80)
    lose(store, 1, 64)
    outcome = engine.ask()
    assert (outcome.external, outcome.boundary, outcome.recomputed) == (32, 32, 58)
    engine.harness.step()
    assert not store.leases
    engine.harness.flush(Tier.DEVICE)
    assert engine.ask().external == 80  # both have been stored again


def test_a_rank_that_has_nothing_leaves_no_lease_on_the_others() -> None:
    engine = Engine(ranks=3)
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.store.lose("image", 9, rank=2)
    assert engine.ask().external == 0
    engine.harness.step()
    assert not engine.store.leases


def test_a_rank_that_does_not_answer_in_time_costs_the_offer_and_no_lease() -> None:
    engine = Engine(ranks=2)
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.store.delay = 19  # the first answers in time, the second when nobody waits any more
    assert engine.ask().external == 0
    engine.harness.step()
    assert not engine.store.leases and not engine.store.waiting


def lose(store: OutsideStore, rank: int, end: int) -> None:
    """One rank loses the state at `end`."""
    (key,) = [key for key, one in store.objects[rank].items() if key[0] == "image" and one.name.end == end]
    del store.objects[rank][key]


def test_the_end_of_a_copy_that_was_overtaken_changes_nothing() -> None:
    engine = Engine(faults=FaultPlan().delay(Where(target=Tier.EXTERNAL), polls=30, count=3))
    engine.ask(tokens=1)
    external = engine.harness.loop.directory.external
    assert external is not None and not external.saving
    assert engine.ask(np.concatenate([PROMPT, PROMPT])).prompt == 180


def test_legs_are_told_by_tier() -> None:
    engine = Engine(faults=FaultPlan().fail(Where(source=Tier.EXTERNAL, target=LIVE), count=1))
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    assert engine.ask().legs == ((Tier.EXTERNAL, "kv", True), (Tier.EXTERNAL, "image", False))


def test_a_load_that_is_given_up_counts_as_failed() -> None:
    engine = Engine()
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.harness.faults.drop(Where(source=Tier.EXTERNAL, target=LIVE), count=1)
    name = engine.begin()
    engine.harness.drain(deliver=False)
    outcome = engine.harness.told[name].outcome
    assert outcome is not None and outcome.reason is Reason.LOAD_FAILED_STATE
    assert outcome.legs[:2] == ((Tier.EXTERNAL, "kv", True), (Tier.EXTERNAL, "image", False))


def test_without_room_for_the_private_part_of_a_chunk_the_hit_is_kept() -> None:
    ends: set[tuple[int, Reason]] = set()
    for pages in range(24, 34):
        engine = Engine(pages)
        engine.ask()
        engine.store.objects, kept = [{}], engine.store.objects
        engine.keep(28)
        engine.store.objects = kept
        reader = engine.begin(np.concatenate([PROMPT[:28], np.array([7, 8, 9], np.int32)]), tokens=20)
        for _ in range(4):
            engine.harness.step()
        assert engine.harness.loop.queues.find_running(reader) is not None
        outcome = engine.ask()
        ends.add((outcome.boundary, outcome.reason))
    assert (28, Reason.PARTIAL_CHUNK_NO_ROOM) in ends and (80, Reason.COMPLETE) in ends, ends


def pages_of_a_load(hit: int, drops: bool) -> int:
    """Pages that the KV of a load above `hit` is copied into."""
    engine = Engine(drops=drops)
    engine.ask()
    engine.store.objects, kept = [{}], engine.store.objects
    engine.keep(hit)
    engine.store.objects = kept
    engine.harness.faults.delay(Where(source=Tier.EXTERNAL), polls=9)
    name = engine.begin()
    while name not in engine.harness.loop.queues.parked:
        engine.harness.step()
    moves = engine.harness.loop.queues.parked[name].loading.moves
    engine.harness.drain()
    return sum(len(move.source.slots) for move in moves if move.what == "kv")


@pytest.mark.parametrize("hit", range(BLOCK, 64, BLOCK))
def test_what_the_device_has_of_a_chunk_takes_pages_only_where_it_is_not_dropped(hit: int) -> None:
    assert pages_of_a_load(hit, drops=False) == (80 - hit // CHUNK * CHUNK) // BLOCK
    assert pages_of_a_load(hit, drops=True) == (80 - hit) // BLOCK


def test_a_part_that_is_dropped_needs_no_room() -> None:
    for pages in range(24, 34):
        engine = Engine(pages, drops=True)
        engine.ask()
        engine.store.objects, kept = [{}], engine.store.objects
        engine.keep(28)
        engine.store.objects = kept
        engine.begin(np.concatenate([PROMPT[:28], np.array([7, 8, 9], np.int32)]), tokens=20)
        for _ in range(4):
            engine.harness.step()
        assert engine.ask().reason is not Reason.PARTIAL_CHUNK_NO_ROOM


def test_a_store_that_is_slow_to_fail_is_left_alone_for_a_while() -> None:
    engine = Engine()
    external = engine.harness.loop.directory.external
    assert external is not None
    external.begin(99, Saving("kv", external.trail("", PROMPT).image(16), 1))
    external.landed(Report(99, False, "no answer within 5 s", seconds=5.0))
    engine.ask()
    assert not engine.store.objects[0] and not external.unstored
    engine.harness.clock.advance(20.0)
    engine.harness.flush(Tier.DEVICE)
    engine.ask()
    assert engine.store.objects[0]


def test_a_rest_begins_with_the_failure_not_with_what_is_to_be_stored_next() -> None:
    engine = Engine()
    external = engine.harness.loop.directory.external
    assert external is not None
    external.begin(99, Saving("kv", external.trail("", PROMPT).image(16), 1))
    external.landed(Report(99, False, "no answer within 5 s", seconds=5.0))
    engine.harness.step()
    engine.harness.clock.advance(20.0)
    engine.ask()
    assert engine.store.objects[0]


def corrupted_and_stored() -> Engine:
    """Wrong bytes of the prompt have been stored, with checksums that are right."""
    engine = Engine()
    external = engine.harness.loop.directory.external
    assert external is not None
    engine.ask(PROMPT[:48])
    external.unstored.clear()
    engine.store.wipe()
    external.distrust(None)  # it knows no more of what was stored
    path = engine.harness.loop.directory.survey("", PROMPT).path
    slots = path[0].kv.at[Tier.DEVICE]
    assert slots is not None
    engine.harness.corrupt(Tier.DEVICE, int(slots[2]))
    engine.ask()
    assert engine.store.objects[0]
    return engine


def test_what_is_quarantined_is_not_loaded_from_the_store_again() -> None:
    engine = corrupted_and_stored()
    assert engine.harness.quarantine("", PROMPT) > 0
    engine.harness.trust()
    assert engine.ask().external == 0
    engine.harness.flush(Tier.DEVICE)
    assert engine.ask().external == 80  # what has been computed anew


def test_what_is_quarantined_is_dropped_from_the_store_with_its_branches() -> None:
    engine = corrupted_and_stored()
    engine.ask(np.concatenate([PROMPT[:60], PROMPT[:40]]))
    assert engine.harness.quarantine("", PROMPT) > 0
    engine.harness.trust()
    engine.harness.step()
    assert not engine.store.objects[0]


def test_a_copy_under_way_is_dropped_once_it_has_landed() -> None:
    engine = Engine(faults=FaultPlan().delay(Where(target=Tier.EXTERNAL), polls=5))
    name = engine.begin()
    external = engine.harness.loop.directory.external
    assert external is not None
    while not external.saving:
        engine.harness.step()
    assert engine.harness.told[name].finished is not None
    engine.harness.quarantine("", PROMPT)
    assert not external.unstored
    engine.harness.drain()
    engine.harness.step()
    assert engine.store.stored and not engine.store.objects[0]


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("clear", ["quarantine", "reset", "reset of the salt"])
def test_no_offer_and_no_load_outlives_its_condemnation(clear: str, steps: int) -> None:
    engine = Engine()
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.store.delay = 2
    engine.harness.faults.delay(Where(source=Tier.EXTERNAL), polls=3)
    name = engine.begin()
    for _ in range(steps):
        engine.harness.step()
    told = engine.harness.told[name]
    assert told.outcome is None
    if clear == "quarantine":
        engine.harness.quarantine("", PROMPT)
    else:
        engine.harness.loop.reset("" if clear == "reset of the salt" else None)
    engine.harness.drain()
    assert told.outcome is not None and told.outcome.external == 0
    assert not engine.store.leases


def test_a_reset_of_one_salt_leaves_the_store_to_others() -> None:
    engine = Engine()
    engine.ask()
    engine.ask(salt="another")
    engine.harness.loop.reset("another")
    engine.harness.flush(Tier.DEVICE)
    assert engine.ask(salt="another").external == 0
    assert engine.ask().external == 80
    engine.harness.restart()
    assert engine.ask(salt="another").external == 80  # as any other engine


def test_a_question_that_is_given_up_is_released() -> None:
    engine = Engine()
    engine.ask()
    engine.harness.flush(Tier.DEVICE)
    engine.store.silent = True
    engine.ask()
    assert engine.store.waiting == 0
    name = engine.begin(np.arange(90, dtype=np.int32))
    engine.harness.step()
    assert engine.store.waiting == 1
    engine.harness.abort(name)
    engine.harness.drain()
    engine.harness.step()
    assert engine.store.waiting == 0


def test_all_of_a_burst_are_asked_for() -> None:
    engine = Engine(pages=400)
    prompts = [np.concatenate([np.array([300 + i], np.int32), PROMPT]) for i in range(20)]
    for prompt in prompts:
        engine.ask(prompt)
    engine.harness.flush(Tier.DEVICE)
    engine.store.delay = 1
    names = [engine.begin(prompt) for prompt in prompts]
    engine.harness.drain()
    outcomes = [engine.harness.told[name].outcome for name in names]
    assert [outcome.external for outcome in outcomes if outcome is not None] == [80] * 20
