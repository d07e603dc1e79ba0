"""The tell-tale: with several ranks, what any one of them holds shows in the answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Cut, Fresh, FromImage, Sample, StateStart, Step, Work
from stepwell.testing import telltale
from stepwell.testing.telltale import Memory, TellTaleRunner, answer, shards

VOCAB = 1000
SIZES = telltale.geometry()
PAGES = np.arange(8, dtype=np.int32)
IMAGE = np.array([8, 9], np.int32)
PROMPT = np.arange(1, 21, dtype=np.int32)
BOUNDARY = 16


class Ranks:
    """Ranks that have computed all of a prompt but its end, and left an image there."""

    def __init__(self, ranks: int, same_kv: bool = False) -> None:
        self.shards = shards(ranks, same_kv)
        self.memories = [Memory(SIZES, 12, 12, 2, shard) for shard in self.shards]
        self.runner = TellTaleRunner(self.memories[0], SIZES, VOCAB, self.memories[1:])
        self.compute(0, BOUNDARY, Fresh(), cuts=(Cut(BOUNDARY, IMAGE),))

    def compute(self, start: int, end: int, state: StateStart, cuts: tuple[Cut, ...] = ()) -> list[int]:
        """Tokens [start, end) of the prompt, and what is sampled after them."""
        tokens: Ints = PROMPT[start:end]
        work = Work("a", 0, 0, start, tokens, PAGES, start, state, cuts, Sample(SamplingParams(), 0))
        return list(self.runner.launch(Step((work,))).result().sampled[0])

    def resume(self) -> list[int]:
        return self.compute(BOUNDARY, len(PROMPT), FromImage(IMAGE))

    def right(self) -> list[int]:
        return answer(PROMPT, 1, VOCAB, ranks=self.shards)


@pytest.mark.parametrize("same_kv", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_resume_on_all_ranks_is_the_cold_answer(ranks: int, same_kv: bool) -> None:
    engine = Ranks(ranks, same_kv)
    assert engine.resume() == engine.right()


def test_answers_differ_with_the_number_of_ranks() -> None:
    assert len({tuple(answer(PROMPT, 4, VOCAB, ranks=shards(n))) for n in (1, 2, 3)}) == 3


def _image_of_another_rank(memories: list[Memory]) -> None:
    memories[1].arenas[Tier.DEVICE][IMAGE] = memories[0].arenas[Tier.DEVICE][IMAGE]


def _images_exchanged(memories: list[Memory]) -> None:
    first, second = (memory.arenas[Tier.DEVICE] for memory in memories[:2])
    first[IMAGE], second[IMAGE] = second[IMAGE].copy(), first[IMAGE].copy()


def _kv_of_another_rank(memories: list[Memory]) -> None:
    memories[0].arenas[Tier.DEVICE][PAGES[1]] = memories[1].arenas[Tier.DEVICE][PAGES[1]]


def _kv_exchanged(memories: list[Memory]) -> None:
    first, second = (memory.arenas[Tier.DEVICE] for memory in memories[:2])
    first[PAGES], second[PAGES] = second[PAGES].copy(), first[PAGES].copy()


def _kv_missing_on_one_rank(memories: list[Memory]) -> None:
    memories[1].poison(Tier.DEVICE, PAGES[:1])


@pytest.mark.parametrize(
    "spoil",
    [_image_of_another_rank, _images_exchanged, _kv_of_another_rank, _kv_exchanged, _kv_missing_on_one_rank],
)
def test_what_one_rank_has_wrong_shows_in_the_answer(spoil: Callable[[list[Memory]], None]) -> None:
    engine = Ranks(2)
    spoil(engine.memories)
    assert engine.resume() != engine.right()


def test_equal_kv_may_be_exchanged_but_states_may_not() -> None:
    engine = Ranks(2, same_kv=True)
    _kv_exchanged(engine.memories)
    assert engine.resume() == engine.right()
    _images_exchanged(engine.memories)
    assert engine.resume() != engine.right()


@pytest.mark.parametrize("same_kv", [False, True])
def test_what_a_rank_holds_is_what_is_said_of_its_shard(same_kv: bool) -> None:
    engine = Ranks(2, same_kv)
    for memory in engine.memories:
        states, cells = telltale.content(PROMPT[:BOUNDARY], shard=memory.shard)
        rows = memory.arenas[Tier.DEVICE]
        assert (rows[PAGES[:4]].reshape(-1, telltale.LAYERS) == cells).all()
        assert memory.unpack(rows[IMAGE]).tolist() == [int(states[-1]), BOUNDARY]
