"""What crosses to ranks: masks of grammars, digests, and what each is built as."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from stepwell.base.geometry import Ints
from stepwell.engine.compute.sampler import Allowed
from stepwell.engine.config import DiskCache, EngineConfig
from stepwell.engine.grammar.vocabulary import GuideError
from stepwell.engine.ranks.heartbeat import DIGEST_EVERY, Tally
from stepwell.engine.ranks.masks import SentMasks, write_masks
from stepwell.engine.ranks.processes import config_of
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import CARRY, NO_DECODES, Sample, Step, Work

VOCAB = 21
HELD = SamplingParams(grammar="a grammar")
HISTORY = np.arange(9, dtype=np.int32)


class Known:
    """Masks by the length of the answer; every question is noted."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []

    def allowed(self, request_id: str, params: SamplingParams, answer: Ints) -> Allowed | None:
        self.asked.append((request_id, answer.tolist()))
        if len(answer) == 3:
            raise GuideError("nothing may follow")
        return None if not len(answer) else np.arange(VOCAB) % 3 == len(answer) % 3


def work(name: str, params: SamplingParams, index: int, history: Ints | None = HISTORY) -> Work:
    table = np.zeros(1, np.int32)
    return Work(name, 0, 0, 8, HISTORY[8:], table, 0, CARRY, (), Sample(params, index, history))


def test_masks_are_looked_up_where_they_were_sent_to() -> None:
    known, sent = Known(), SentMasks(VOCAB)
    free = SamplingParams()
    works = work("two", HELD, 2), work("none", HELD, 0), work("broken", HELD, 3), work("free", free, 1, None)
    sent.take(write_masks(Step(works, NO_DECODES), known))
    assert known.asked == [("two", [7, 8]), ("none", []), ("broken", [6, 7, 8])]
    two = sent.allowed("two", HELD, HISTORY[7:])
    assert two is not None and two.tolist() == (np.arange(VOCAB) % 3 == 2).tolist()
    assert sent.allowed("none", HELD, HISTORY[:0]) is None
    with pytest.raises(GuideError, match="nothing may follow"):
        sent.allowed("broken", HELD, HISTORY[6:])


def test_a_step_without_grammars_brings_no_mask() -> None:
    assert write_masks(Step((work("free", SamplingParams(), 1),)), Known()) == b""


def test_digests_are_equal_as_long_as_all_results_were() -> None:
    first, second, third = Tally(), Tally(), Tally()
    for i in range(DIGEST_EVERY):
        for tally in (first, second, third):
            tally.finish(b"other" if tally is third and i == 3 else bytes([i]))
    digests = [tally.due() for tally in (first, second, third)]
    assert digests[0] == digests[1] != digests[2]
    assert list(digests[0]) == [DIGEST_EVERY] and not first.due()


def test_host_and_disk_are_shared_and_faults_befall_the_last_rank() -> None:
    config = EngineConfig(
        "m",
        tensor_parallel_size=2,
        host_memory=100,
        device_memory=70,
        disk_cache=DiskCache("/cache", 90),
        faults=("fail:kv:*",),
    )
    first, last = (config_of(config, rank) for rank in range(2))
    assert (first.host_memory, first.device_memory, first.disk_cache) == (50, 70, DiskCache("/cache/rank-0-of-2", 45))
    assert (last.disk_cache, last.faults, first.faults) == (DiskCache("/cache/rank-1-of-2", 45), config.faults, ())
    assert msgspec.json.decode(msgspec.json.encode(last), type=EngineConfig) == last
