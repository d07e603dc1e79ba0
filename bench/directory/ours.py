"""Our own side of the trace: the directory's calls one by one, and the whole engine loop with a runner that computes nothing."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

import numpy as np

from directory.made import BLOCK, GRID, IMAGE_BYTES, KV_BYTES
from directory.requests import Pair, Played
from stepwell.base.clock import VirtualClock
from stepwell.base.geometry import Geometry, Ints
from stepwell.base.units import ceil_div, floor_to
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.moves import Tier
from stepwell.cache.placement import prompt_rungs
from stepwell.cache.publish import leave_rung, publish
from stepwell.cache.reuse.admission import Runnable, commit
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.cache.reuse.plan import Plan
from stepwell.cache.tree import RungKind
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Admitted, Finished, Request, SamplingParams
from stepwell.sched.step import Done, Step, StepResult
from stepwell.testing.faults import InstantMover

GIB = 2**30
COSTS = Costs()


class Reciting:
    """A runner that computes nothing and answers what the trace answered. It takes the time it takes, which is not counted."""

    def __init__(self) -> None:
        self.answer: list[int] = []
        self.seconds = 0.0

    def launch(self, step: Step) -> Done:
        began = time.thread_time()
        sampled = []
        for work in step.works:
            first = work.sample.index if work.sample is not None else 0
            sampled.append(tuple(self.answer[first : first + 1]) if work.sample is not None else ())
        self.seconds += time.thread_time() - began
        return Done(StepResult(tuple(sampled)))


def cache_of(device_gib: float, host_gib: float = 0.0) -> CacheConfig:
    geometry = Geometry(BLOCK, GRID, BLOCK * KV_BYTES, IMAGE_BYTES)
    pages, slots = (int(gib * GIB) // geometry.page_bytes for gib in (device_gib, host_gib))
    return CacheConfig(geometry, device_pages=pages, host_slots=slots)


def play(requests: Sequence[Pair], device_gib: float, host_gib: float) -> Played:
    """One request after another through the whole engine loop: from `submit` to the last token's events, all steps, less the
    runner's own time."""
    runner = Reciting()
    rules = SchedConfig(max_num_seqs=16, max_num_batched_tokens=8192)
    clock = VirtualClock()  # a request a second: what is kept must not depend on how busy the machine is
    loop = EngineLoop(cache_of(device_gib, host_gib), rules, runner, InstantMover(), clock)
    outcomes: list[AdmissionOutcome] = []
    seconds = 0.0
    gc.collect()
    gc.freeze()
    for i, (prompt, answer) in enumerate(requests):
        runner.answer = answer.tolist()
        request = Request(str(i), prompt, SamplingParams(max_tokens=len(answer), ignore_eos=True))
        began = time.thread_time()
        loop.submit(request)
        ended = False
        while not ended:
            events = loop.step()
            ended = any(isinstance(event, Finished) for event in events)
            outcomes += [event.outcome for event in events if isinstance(event, Admitted)]
        seconds += time.thread_time() - began
        while loop.busy:  # copies that nobody waits for
            loop.step()
        clock.advance(1.0)
    gc.unfreeze()
    hit = sum(o.cached for o in outcomes) / sum(o.prompt for o in outcomes)
    return Played(1e6 * (seconds - runner.seconds) / len(outcomes), hit)


def span(requests: Sequence[Pair], device_gib: float) -> float:
    """µs a request for the directory's calls alone, on the device: survey, plan, commit, room for the prompt, publish with its
    rungs, the answer the same, release."""
    directory = Directory(cache_of(device_gib))
    seconds = 0.0
    gc.collect()
    gc.freeze()
    for i, (prompt, answer) in enumerate(requests):
        whole = np.concatenate([prompt, answer])
        began = time.thread_time()
        serve(directory, prompt, whole, str(i), float(i))
        seconds += time.thread_time() - began
    gc.unfreeze()
    return 1e6 * seconds / len(requests)


def serve(directory: Directory, prompt: Ints, whole: Ints, name: str, now: float) -> None:
    """One request from its admission to its end; `whole`: the prompt and its answer."""
    plan = directory.plan("", prompt, COSTS)
    assert isinstance(plan, Plan), "one request at a time has room"
    state = commit(directory, plan, name, prompt, 0, now)
    assert isinstance(state, Runnable), "nothing is to be loaded"
    rungs = prompt_rungs(len(prompt), state.boundary, state.outcome.diverged_at, directory.config)
    last = floor_to(len(whole) - 1, BLOCK)
    store(directory, state, prompt, floor_to(len(prompt), BLOCK), rungs, now)
    store(directory, state, whole, last, ((last, RungKind.ROLLING),), now)
    if state.image is not None:
        directory.release(state.image)
    directory.release(state.path)
    directory.close(state.table)


def store(
    directory: Directory, state: Runnable, tokens: Ints, end: int, rungs: Sequence[tuple[int, RungKind]], now: float
) -> None:
    """Make [0, end) of `tokens` findable, with rungs where there is room for them."""
    pages = ceil_div(len(tokens), BLOCK) - len(state.table)
    if pages > 0:
        assert free_pages(directory, pages, force=True), "one request at a time has room"
        directory.grow(state.table, pages)
    publish(directory, state.path, tokens, max(end, state.path.item.node.end), state.table, now)
    for position, kind in rungs:
        image = directory.config.geometry.image_pages
        if position <= state.path.item.node.end and free_pages(directory, image, force=True):
            leave_rung(directory, state.path, position, directory.pools[Tier.DEVICE].take(image), kind, now)


def to_array(requests: Sequence[Pair]) -> float:
    """µs a request to make an int32 array of its prompt where that comes as a list of numbers, as peers take it."""
    seconds = 0.0
    for prompt, _ in requests:
        told = prompt.tolist()
        began = time.thread_time()
        np.array(told, np.int32)
        seconds += time.thread_time() - began
    return 1e6 * seconds / len(requests)
