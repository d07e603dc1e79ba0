"""What is condemned is read by nobody any more."""

from __future__ import annotations

from stepwell.base.geometry import Ints
from stepwell.cache.quarantine import quarantine
from stepwell.cache.recall import recall
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing.harness import Harness
from tests.cache.builders import join, numbers
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
    recall(harness.loop.directory, "", PROMPT, 1.0)
    harness.step()
    assert quarantine(harness.loop.directory, "", PROMPT) > 0
    harness.step()
    assert serve(harness, "prompt again", PROMPT) == 0
    assert serve(harness, "fork again", FORK) <= 100
