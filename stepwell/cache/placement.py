"""Where to leave a rung. Pure arithmetic on positions; the recurrent op hands the states out at no extra pass."""

from __future__ import annotations

from math import lcm

from stepwell.base.units import floor_to
from stepwell.cache.config import CacheConfig
from stepwell.cache.tree import RungKind


def prompt_rungs(
    tokens: int, resumed: int, branch: int | None, config: CacheConfig, places: tuple[int, ...] = ()
) -> tuple[tuple[int, RungKind], ...]:
    """Positions in (resumed, tokens] where a prompt of `tokens` tokens leaves a rung, ascending.

    prompt end   the last grid boundary at or below the end: the next turn resumes there
    interval     insurance against branches and compaction; for a prompt that ends on the grid also one grid above its end: the same
                 prompt sent again resumes there, since its last token is always computed
    places       where the caller knows that prompts tend to part: the last grid boundary at or below each
    branch       the last grid boundary shared with the path that the prompt left at `branch`: besides the others
    """
    grid = config.geometry.rung_grid
    wanted: dict[int, RungKind] = {}
    first = floor_to(resumed, config.interval) + config.interval
    for position in range(first, tokens, config.interval):
        wanted[position] = RungKind.INTERVAL
    for place in places:
        if 0 < place < tokens:
            wanted[floor_to(place, grid)] = RungKind.INTERVAL
    if branch is not None:
        wanted[floor_to(branch, grid)] = RungKind.BRANCH
    wanted[floor_to(tokens, grid)] = RungKind.PROMPT_END
    wanted.setdefault(floor_to(tokens - 1, grid), RungKind.INTERVAL)
    if config.whole_chunks:
        wanted.setdefault(floor_to(tokens - 1, lcm(config.chunk, grid)), RungKind.PROMPT_END)
    return tuple(sorted((p, kind) for p, kind in wanted.items() if resumed < p))
