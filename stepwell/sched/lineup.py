"""The answers that go on in a step, row by row, and all that stays as it was from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.sched.board import Board
from stepwell.sched.job import Running
from stepwell.sched.request import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Lineup:
    """Rows of `Decodes`, in their order; its columns as there.

    runs   whose rows they are              at    row of each live slot
    tails  where their tokens go, see `stepwell.sched.job.Tokens`
    ends   tokens that may end one of the answers: whose, and whether, is for their params to say
    """

    runs: tuple[Running, ...]
    slots: Ints
    at: dict[int, int]
    names: tuple[str, ...]
    params: tuple[SamplingParams, ...]
    roots: npt.NDArray[np.int64]
    prompts: Ints
    tails: tuple[list[int], ...]
    ends: frozenset[int]

    @classmethod
    def of(cls, runs: Sequence[Running], board: Board, eos: tuple[int, ...]) -> Lineup:
        """That of `runs`. O(n) objects."""
        numbers = [running.slot for running in runs]
        slots = np.array(numbers, np.int32)
        jobs = [running.job for running in runs]
        params = tuple([job.request.params for job in jobs])
        return cls(
            tuple(runs),
            slots,
            dict(zip(numbers, range(len(numbers)), strict=True)),
            tuple([job.request.id for job in jobs]),
            params,
            board.roots[slots],
            board.prompts[slots],
            tuple([job.tokens.tail for job in jobs]),
            frozenset(eos).union(*{p.stop_token_ids for p in params}),
        )
