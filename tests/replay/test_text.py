"""Equal ids give equal tokens, and nothing else does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.text import Text
from stepwell.replay.trace import Conversation, Run, Stream, Turn


def prompts(text: Text, *turns: tuple[int, tuple[Run, ...]], name: str = "a", edition: int = 0) -> list[list[int]]:
    """Tokens of turns given as (tokens, runs), in one conversation of 8-token blocks."""
    stream = Stream(0.0, tuple(Turn(float(i), n, 1, 0.0, runs) for i, (n, runs) in enumerate(turns)))
    conversation = Conversation(name, 8, (stream,))
    return [text.prompt(conversation, 0, i, edition).tolist() for i in range(len(turns))]


def common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_prompts_share_exactly_their_common_blocks() -> None:
    long, rewound, same = prompts(Text(1), (83, ((1, 10),)), (75, ((1, 4), (20, 5))), (83, ((1, 10),)))
    assert (len(long), len(rewound), len(same)) == (83, 75, 83)
    assert common(long, rewound) == 32
    assert common(long, same) == 80, "tokens past the last whole block are each request's own"


def test_a_block_cut_short_is_shared_as_far_as_it_goes() -> None:
    short, long = prompts(Text(1), (20, ((1, 3),)), (24, ((1, 3),)))
    assert long[:20] == short


def test_every_block_starts_with_a_token_of_its_own() -> None:
    (tokens,) = prompts(Text(2), (8 * 50_000, ((0, 50_000),)))
    firsts = tokens[::8]
    assert len(set(firsts)) == len(firsts)
    assert min(tokens) >= 0


def test_own_tokens_never_start_like_a_block() -> None:
    turns = [(8 * 2_000 + 3, ((0, 2_000),)), *((3, ()) for _ in range(200))]
    blocks, *tails = prompts(Text(3), *turns)
    starts = [blocks[-3], *(tail[0] for tail in tails)]
    assert len(set(starts)) == len(starts)
    assert not set(starts) & set(blocks[: 8 * 2_000 : 8])


def test_conversations_editions_and_seeds_share_nothing() -> None:
    turn: tuple[int, tuple[Run, ...]] = (40, ((1, 5),))
    (one,) = prompts(Text(1), turn)
    others = [
        prompts(Text(1), turn, name="b")[0],
        prompts(Text(1), turn, edition=1)[0],
        prompts(Text(2), turn)[0],
    ]
    assert all(common(one, other) <= 1 for other in others)
    assert prompts(Text(1), turn)[0] == one


def test_sub_agents_read_the_same_ids_as_their_parent() -> None:
    stream = Stream(0.0, (Turn(0.0, 16, 1, 0.0, ((3, 2),)),))
    conversation = Conversation("a", 8, (stream, stream))
    text = Text()
    assert np.array_equal(text.prompt(conversation, 0, 0), text.prompt(conversation, 1, 0))


@pytest.mark.parametrize("vocab", [50, 4096, 150_000])
def test_tokens_fit_a_vocabulary(vocab: int) -> None:
    text = Text(5, vocab)
    made = synthetic(2, 1, Shape(scale=0.05, turns=(6, 0.1), branch=0.0, agents=0.0))
    for conversation in made.conversations:
        turns = conversation.streams[0].turns
        for i, (a, b) in enumerate(pairwise(turns)):
            before, after = text.prompt(conversation, 0, i), text.prompt(conversation, 0, i + 1)
            assert before.dtype == np.int32
            assert 0 <= before.min() <= before.max() < vocab
            shared = common(before.tolist(), after.tolist())
            assert shared >= a.blocks * 64
            assert shared < a.blocks * 64 + 16
            assert len(after) == b.prompt
