"""The bound that knows the future, against every choice tried out, and against the bound without limits."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest

from stepwell.replay.bound import Bound
from stepwell.replay.future import Asked, least_prefill
from stepwell.replay.lanes import TraceRequest
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import Conversation, Stream, Turn

BLOCK = 64


def asked(*prompts: tuple[int, ...], edition: int = 0, measured: bool = True) -> list[Asked]:
    """Requests of one conversation, each told by the ids of its blocks, with one token more than those."""
    turns = tuple(Turn(float(i), BLOCK * len(p) + 1, 1, 0.0, tuple((b, 1) for b in p)) for i, p in enumerate(prompts))
    told = Conversation("a", BLOCK, (Stream(0.0, turns),))
    return [Asked(TraceRequest(0.0, 0, edition, told, 0, i), measured) for i in range(len(turns))]


def tried_out(prompts: list[tuple[int, ...]], blocks: int) -> int:
    """The fewest tokens that are computed over all ways to keep at most `blocks` blocks after each prompt."""

    @cache
    def from_here(at: int, kept: frozenset[int]) -> int:
        if at == len(prompts):
            return 0
        prompt = prompts[at]
        lead = next((i for i, block in enumerate(prompt) if block not in kept), len(prompt))
        known = sorted(kept | set(prompt))
        size = min(blocks, len(known))
        best = min(from_here(at + 1, frozenset(choice)) for choice in combinations(known, size))
        return BLOCK * (len(prompt) - lead) + 1 + best

    return from_here(0, frozenset())


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_computes_less(seed: int) -> None:
    draw = np.random.default_rng(seed)
    trees = [(0, 1, 2), (0, 1, 3), (0, 4, 5), (6, 7)]
    prompts = [trees[draw.integers(4)][: draw.integers(1, 4)] for _ in range(7)]
    for blocks in range(7):
        assert least_prefill(asked(*prompts), blocks * BLOCK) == tried_out(prompts, blocks)


def requests(scale: float = 0.1) -> list[Asked]:
    """Two dozen conversations side by side, turn by turn."""
    told = synthetic(24, 5, Shape(scale=scale, branch=0.2))
    turns = [(j, c) for c in told.conversations for j in range(len(c.streams[0].turns))]
    return [Asked(TraceRequest(0.0, 0, 0, c, 0, j), j > 1) for j, c in sorted(turns, key=lambda t: t[0])]


def test_with_memory_for_everything_it_is_the_bound_without_limits() -> None:
    bound, needed = Bound(), 0
    for request, measured in requests():
        needed += (request.turn.prompt - bound.add(request.conversation, request.turn)) * measured
    assert least_prefill(requests(), 10**9) == needed


def test_without_memory_every_token_is_computed() -> None:
    assert least_prefill(requests(), 0) == sum(r.turn.prompt * measured for r, measured in requests())


def test_more_memory_never_computes_more() -> None:
    found = [least_prefill(requests(), size) for size in (0, 10_000, 30_000, 100_000, 300_000, 10**6)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) > 3


def test_only_measured_requests_count_and_editions_share_nothing() -> None:
    first, again = asked((0, 1, 2), measured=False), asked((0, 1, 2), edition=1)
    assert least_prefill([*first, *again], 10**6) == 3 * BLOCK + 1
    assert least_prefill([*first, *asked((0, 1, 2))], 10**6) == 1
