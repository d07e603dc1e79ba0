"""Chunks in host, blocks on the device, and loads that start on the grid of chunks or anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Loss, Reason
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.atom import AtomCache
from stepwell.replay.peers.job import Job, Keys
from tests.replay.peers.play import KV_BYTES, links, serve, text

LONG = text(1, 20_100)


def cache(unaligned: bool, device: int = 40_000, host: int = 200_000) -> AtomCache:
    return AtomCache(
        MachineSizes(device_tokens=device, host_tokens=host, rung_tokens=320), KV_BYTES, links(), unaligned
    )


def short_hit(peer: AtomCache) -> Ints:
    """The long prompt is in host; of it the device has 960 tokens with a state, off the grid of chunks."""
    serve(peer, LONG[:1000])
    serve(peer, LONG)
    serve(peer, LONG[:1000])
    serve(peer, text(2, 36_760))
    return np.concatenate((LONG, text(3, 500)))


def test_states_stand_every_8192_tokens_and_at_the_prompts_end() -> None:
    peer = cache(unaligned=True)
    serve(peer, LONG, chunk=5000)
    assert peer.left == 3
    assert serve(peer, np.concatenate((LONG, text(4, 50)))).boundary == 20_096
    assert serve(peer, np.concatenate((LONG[:18_000], text(5, 50)))).boundary == 16_384
    peer.check()


def test_before_a_hit_off_the_grid_keeps_a_load_from_being_made() -> None:
    peer = cache(unaligned=False)
    start = serve(peer, short_hit(peer))
    assert (start.boundary, start.hit, start.reason) == (960, 960, Reason.OFF_CHUNK_GRID)
    assert dict(start.lost)[Loss.PARTIAL_CHUNK] == 16_384 - 960
    peer.check()


def test_after_the_load_starts_at_the_chunk_below_the_hit() -> None:
    peer = cache(unaligned=True)
    start = serve(peer, short_hit(peer))
    assert (start.boundary, start.hit, start.host, start.state_tier) == (16_384, 960, 16_384 - 960, Tier.HOST)
    assert start.load is not None
    assert start.load.kv_bytes == (16_384 - 768) * KV_BYTES, "the partial chunk is read again"
    assert start.load.image_bytes == 320 * KV_BYTES
    peer.check()


def test_a_failed_leg_keeps_the_hit_since_the_change_and_cost_all_before() -> None:
    peer = cache(unaligned=True)
    prompt = short_hit(peer)
    job = Job("r", Keys(peer.page).of(prompt), len(prompt), len(prompt))
    start = peer.admit(job)
    assert start is not None
    assert start.load is not None
    for engine, resumed in ((peer, 960), (cache(unaligned=False), 0)):
        failed = engine.retreat(job, start, Reason.LOAD_FAILED_KV)
        assert (failed.boundary, failed.reason, failed.load) == (resumed, Reason.LOAD_FAILED_KV, None)
        assert failed.lost[0] == (Loss.FAILED_LEG, 16_384 - resumed)


def test_a_state_that_host_has_dropped_is_still_asked_for_and_fails() -> None:
    chunks, states = (78 + 132) * 4, (3 + 5) * 5
    peer = cache(unaligned=True, host=(chunks + states - 10) * 64)
    serve(peer, LONG)
    serve(peer, LONG)  # its chunks are looked up, and so outlive its states
    serve(peer, text(2, 34_000))
    start = serve(peer, np.concatenate((LONG, text(3, 500))))
    assert (start.boundary, start.reason) == (0, Reason.LOAD_FAILED_STATE)
    assert start.lost[0] == (Loss.FAILED_LEG, 16_384)
    peer.check()


def test_chunks_are_of_whole_blocks() -> None:
    with pytest.raises(ConfigError, match="--block-size must divide 256"):
        AtomCache(MachineSizes(block=96, rung_grid=96), KV_BYTES, links(), unaligned=True)
