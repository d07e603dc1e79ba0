"""One request after another through a peer's cache alone."""

from __future__ import annotations

import numpy as np

from stepwell.base.clock import VirtualClock
from stepwell.base.geometry import Ints
from stepwell.replay.cost import CostModel
from stepwell.replay.peers.job import Job, Keys, PeerCache, Start
from stepwell.replay.runner import Links

KV_BYTES = 10


def links() -> Links:
    return Links(VirtualClock(), CostModel(kv_bytes_per_token=KV_BYTES))


def text(seed: int, tokens: int) -> Ints:
    """int32 [tokens] that no other seed makes."""
    return np.random.default_rng(seed).integers(1, 2**31 - 1, tokens, np.int32)


def serve(cache: PeerCache, prompt: Ints, answer: Ints | None = None, chunk: int = 8192) -> Start:
    """Play one request to its end; how it started. A load that is known to fail does."""
    tokens = np.concatenate((prompt, text(0, 1) if answer is None else answer))
    job = Job("r", Keys(cache.page).of(tokens), len(prompt), len(tokens))
    assert cache.fits(job)
    start = cache.admit(job)
    assert start is not None
    if start.load is not None and start.load.missing is not None:
        start = cache.retreat(job, start, start.load.missing)
    job.boundary = job.computed = start.boundary
    cache.computed(job)
    while job.computed < job.prompt:
        end = cache.chunk_end(job, chunk)
        assert job.computed < end <= job.computed + chunk
        job.computed = min(end, job.prompt)
        cache.computed(job)
    job.sampled, job.computed = job.total - job.prompt, job.total - 1
    cache.computed(job)
    cache.finish(job)
    assert start.outcome(job).device + start.host + start.outcome(job).recomputed == job.prompt
    assert sum(tokens for _, tokens in start.lost) == job.prompt - start.boundary
    return start
