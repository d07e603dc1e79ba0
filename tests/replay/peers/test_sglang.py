"""A radix tree over two pools with an order of last use each."""

from __future__ import annotations

import numpy as np

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Loss, Reason
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.sglang import SglangCache
from tests.replay.peers.play import KV_BYTES, links, serve, text


def cache(device: int, rung: int = 100, host: int = 0) -> SglangCache:
    return SglangCache(MachineSizes(device_tokens=device, host_tokens=host, rung_tokens=rung), KV_BYTES, links())


def test_each_piece_of_a_prompt_leaves_a_state_and_answers_one_every_256_tokens() -> None:
    peer, prompt, answer = cache(20_000), text(1, 500), text(2, 700)
    serve(peer, prompt, answer, chunk=256)
    assert peer.left == 3, "after 256 and 448 tokens of the prompt, and 1,024 of all"
    assert serve(peer, np.concatenate((prompt[:300], text(3, 100)))).boundary == 256
    assert serve(peer, np.concatenate((prompt, text(4, 100)))).boundary == 448
    assert serve(peer, np.concatenate((prompt, answer, text(5, 100)))).boundary == 1024
    peer.check()


def test_a_branching_point_is_kept_instead_of_the_end() -> None:
    peer, shared = cache(20_000), text(1, 200)
    branch = [np.concatenate((shared, text(seed, 200))) for seed in (2, 3, 4)]
    assert [serve(peer, prompt).boundary for prompt in branch] == [0, 0, 192]
    again = serve(peer, branch[1])
    assert again.boundary == 192, "the second one left its state at the branch alone"
    peer.check()


def test_states_go_by_themselves_and_leave_the_kv() -> None:
    peer = cache(20_000, rung=1800)  # five slots for states, three of which the running request holds
    prompt = text(1, 2000)
    serve(peer, prompt, chunk=256)
    start = serve(peer, prompt[:600])
    assert (start.boundary, start.reason) == (0, Reason.NO_RUNG)
    assert dict(start.lost)[Loss.EVICTED_RUNG] == 512
    peer.check()


def test_a_hit_refreshes_the_state_that_it_used_and_no_other() -> None:
    peer = cache(20_000, rung=1300)  # seven slots: four states are kept
    prompt = text(1, 900)
    for end in (200, 500, 900):
        serve(peer, prompt[:end])
    serve(peer, text(2, 100))
    serve(peer, text(3, 100))
    assert serve(peer, prompt[:250]).boundary == 0, "the state at 192 is older than the one at 896"
    assert serve(peer, np.concatenate((prompt, text(4, 10)))).boundary == 896
    peer.check()


def test_what_was_evicted_comes_back_from_host_with_its_state() -> None:
    for host, found in ((0, 0), (20_000, 448)):
        peer, first = cache(3000, host=host), text(1, 500)
        serve(peer, first)
        for seed in range(2, 7):
            serve(peer, text(seed, 500))
        start = serve(peer, first)
        assert (start.boundary, start.host, start.state_tier) == (found, found, Tier.HOST if host else None)
        assert serve(peer, first).host == 0, "what was loaded is on the device again"
        peer.check()
