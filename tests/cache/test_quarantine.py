"""What is condemned is read by nobody any more."""

from __future__ import annotations

from stepwell.base.geometry import Ints
from stepwell.cache.check import check
from stepwell.cache.clear import quarantine
from stepwell.cache.copies import copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import Archive
from stepwell.cache.disk.learn import learn_from_disk
from stepwell.cache.disk.names import Names
from stepwell.cache.disk.persist import persist_idle
from stepwell.cache.moves import Forget, Move, Report, Tier
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing.harness import Harness
from tests.cache.builders import config, join, keep, node_ending, numbers
from tests.cases.serving import DEAR, rules

PROMPT = numbers(200)
FORK = join(PROMPT[:100], numbers(92, 9))
ONCE = SamplingParams(max_tokens=1)


def serve(harness: Harness, name: str, prompt: Ints) -> int:
    """Where the request resumed."""
    harness.submit(Request(name, prompt, ONCE))
    harness.drain()
    outcome = harness.told[name].outcome
    assert outcome is not None
    return outcome.boundary


def test_a_branch_that_an_earlier_process_left_goes_too() -> None:
    """It was computed from the very bytes that are condemned, and is of use again as soon as the beginning has been computed anew."""
    cache = rules(100, 200, disk=300, grid=8, interval=64)
    harness = Harness(cache, SchedConfig(max_num_seqs=2, max_num_batched_tokens=64), costs=DEAR)
    serve(harness, "prompt", PROMPT)
    serve(harness, "fork", FORK)
    harness.restart()
    learn_from_disk(harness.loop.directory, "", PROMPT, 1.0)
    harness.step()
    assert quarantine(harness.loop.directory, "", PROMPT) > 0
    harness.step()
    assert serve(harness, "prompt again", PROMPT) == 0
    assert serve(harness, "fork again", FORK) <= 100


def test_the_disk_forgets_at_once_what_is_condemned_while_it_is_read() -> None:
    """A process that ends before the reader does must leave nothing of it to the next."""
    shelf = Directory(config(64, 64, disk=64), Archive(Names(b"n" * 32, 16)))
    keep(shelf, PROMPT[:48], 40, rungs=(40,))
    while persist_idle(shelf, DEAR, 0.0):
        for task in shelf.archive.send():
            assert isinstance(task, Move) and copy_landed(shelf, Report(task.ticket, True))
    kv = node_ending(shelf, PROMPT, 40).kv
    lease, slots = shelf.lease(kv, Tier.DISK), kv.at[Tier.DISK]
    assert slots is not None and quarantine(shelf, "", PROMPT) > 0
    told = [task for task in shelf.archive.send() if isinstance(task, Forget)]
    assert set(slots.tolist()) <= {slot for order in told for slot in order.slots.tolist()}
    shelf.release(lease)
    assert not shelf.archive.send(), "its slots may be another's by the time a second order comes"
    check(shelf)
