"""Names of prefixes, and what recomputed tokens were lost to."""

from __future__ import annotations

import numpy as np

from stepwell.cache.reuse.outcome import Loss
from stepwell.replay.peers.job import Job, Keys, Past, state_key
from tests.replay.peers.play import text


def test_equal_prefixes_have_equal_names_and_no_others() -> None:
    keys, shared = Keys(16), text(1, 100)
    a, b = (keys.of(np.concatenate((shared, text(seed, 60)))) for seed in (2, 3))
    assert len(a) == 10, "whole pages alone"
    assert a[:6] == b[:6], "six pages are shared, the seventh but in part"
    assert not set(a[6:]) & set(b[6:])
    moved = np.concatenate((text(4, 16), shared))
    assert not set(keys.of(moved)) & set(a), "the same page after another prefix"
    swapped = np.concatenate((shared[16:32], shared[:16]))
    assert keys.of(swapped)[1] != a[1]


def test_a_state_is_named_apart_from_the_kv_before_it() -> None:
    keys = Keys(16).of(text(1, 64))
    assert not {state_key(key) for key in keys} & set(keys)


def test_tokens_are_lost_to_what_was_there_once() -> None:
    job = Job("r", Keys(16).of(text(1, 160)), 155, 160)
    past = Past()
    assert past.lost(job, 16, 0, 0, None, 0) == [(Loss.NEW, 155)]
    past.note(job.keys[:6])
    past.note_state(job.keys[1])
    lost = past.lost(job, 16, 16, 64, None, 0)
    assert lost == [(Loss.EVICTED_RUNG, 16), (Loss.NO_RUNG, 32), (Loss.EVICTED_KV, 32), (Loss.NEW, 59)]
    assert past.lost(job, 16, 64, 96, Loss.TOO_SMALL, 96) == [(Loss.TOO_SMALL, 32), (Loss.NEW, 59)]
