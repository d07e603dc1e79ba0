"""States on block boundaries, one free list, a host tier below it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Loss, Reason
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.job import Job, Keys
from stepwell.replay.peers.vllm import VllmCache
from tests.replay.peers.play import KV_BYTES, links, serve, text

SIZES = MachineSizes(device_tokens=4000, host_tokens=0, rung_tokens=96)


def cache(sizes: MachineSizes = SIZES) -> VllmCache:
    return VllmCache(sizes, KV_BYTES, links())


def test_a_block_is_as_large_as_a_third_of_a_state() -> None:
    assert cache().page == 32
    assert cache(replace(SIZES, rung_tokens=6100)).page == 2048


def test_the_last_boundary_of_the_prompt_is_resumed_and_the_answer_recomputed() -> None:
    peer, prompt, answer = cache(), text(1, 100), text(2, 60)
    assert serve(peer, prompt, answer).boundary == 0
    longer = np.concatenate((prompt, answer, text(3, 40)))
    start = serve(peer, longer)
    assert (start.boundary, start.state_tier, start.reason) == (96, Tier.DEVICE, Reason.NO_RUNG)
    assert dict(start.lost)[Loss.NO_RUNG] == 32, "KV of the answer's whole block is there, a state is not"
    peer.check()


def test_a_prefix_without_a_state_gets_one_when_it_is_met_again() -> None:
    peer, shared = cache(), text(1, 100)
    starts = [serve(peer, np.concatenate((shared, text(seed, 100)))) for seed in (2, 3, 4)]
    assert [start.boundary for start in starts] == [0, 0, 96]
    peer.check()


def test_kv_and_states_are_evicted_from_one_list_and_come_back_from_host() -> None:
    for host, found in ((0, 0), (8000, 288)):
        peer = cache(replace(SIZES, device_tokens=1600, host_tokens=host))
        first = text(1, 300)
        serve(peer, first)
        for seed in range(2, 7):
            serve(peer, text(seed, 300))
        start = serve(peer, first)
        assert (start.boundary, start.host, start.hit) == (found, found, 0)
        assert start.state_tier == (Tier.HOST if host else None)
        assert (start.load is None) == (not host)
        peer.check()


def test_a_state_that_was_loaded_is_found_on_the_device_from_then_on() -> None:
    peer = cache(replace(SIZES, device_tokens=1600, host_tokens=8000))
    first = text(1, 300)
    for seed in range(1, 7):
        serve(peer, text(seed, 300))
    starts = [serve(peer, np.concatenate((first, text(seed, 50)))) for seed in (8, 9)]
    assert [(start.boundary, start.hit) for start in starts] == [(288, 0), (288, 288)]
    peer.check()


def test_a_failed_load_costs_all() -> None:
    peer = cache(replace(SIZES, device_tokens=1600, host_tokens=8000))
    for seed in range(1, 7):
        serve(peer, text(seed, 300))
    prompt = text(1, 300)
    job = Job("r", Keys(peer.page).of(prompt), 300, 300)
    start = peer.admit(job)
    assert start is not None
    assert start.load is not None
    failed = peer.retreat(job, start, Reason.LOAD_FAILED_KV)
    assert (failed.boundary, failed.reason) == (0, Reason.LOAD_FAILED_KV)
    assert failed.lost == ((Loss.FAILED_LEG, 288), (Loss.NEW, 12))
    assert failed.load is None
