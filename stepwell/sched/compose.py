"""From what each request is to compute to the step that computes it, and to what the result will mean.

A decode that comes to a token and nothing else is a row in columns (`stepwell.sched.board`), and no object is made of it. Whatever
more there is to a part of a step is a `Share`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.cache.tree import RungKind
from stepwell.sched.board import Board
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Job, Running
from stepwell.sched.queues import NOBODY, Lineup, Queues
from stepwell.sched.step import CARRY, LAST_DRAW, NO_DECODES, Cut, Decodes, Sample, Score, Step, Work


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One request's part of a step: it computes up to `end` and leaves `rungs` (position, kind, pages).

    drafts  the last tokens up to there are guesses, so many of them: how far it got is known once the step has been collected
    calm    a decode whose token is handed out with everybody's: what is left to do for it is to publish the block that it ends
    """

    running: Running
    end: int
    rungs: tuple[tuple[int, RungKind, Ints], ...] = ()
    drafts: int = 0
    calm: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A step, and whose work it is.

    lineup  whose the decodes are       calm  rows of those whose tokens are handed out together
    shares  by index in the step, ascending: of all others, and of rows of `calm` that end a block
    """

    step: Step
    lineup: Lineup
    calm: npt.NDArray[np.intp]
    shares: Mapping[int, Share]


def compose(
    queues: Queues,
    config: SchedConfig,
    shares: Sequence[Share],
    calm: Ints = NOBODY,
    turning: Sequence[Running] = (),
) -> Built:
    """The step of these shares, and of a token for each who runs in one of the slots `calm`; those `turning` have a new page for it.
    From here on it counts as launched. O(shares) objects, and a few arrays of all rows."""
    alone = [share for share in shares if share.calm or (not share.drafts and share.running.goes_on)]
    going = {share.running.slot: share for share in alone}
    others = [share for share in shares if share.running.slot not in going]
    board, lineup = queues.board, _lineup(queues, config, calm, going)
    rows = {lineup.at[slot]: share for slot, share in going.items()}
    decodes = _decodes(board, lineup, rows, turning) if len(lineup.slots) else NO_DECODES
    step = Step(tuple([_work(board, share) for share in others]), decodes, queues.drafting)
    board.launched[calm] += 1
    for share in shares:
        running = share.running
        if not share.calm:
            running.launched, running.start = share.end, CARRY
            running.guessed = queues.drafting and share.end >= running.given  # drafts lie behind a draw
            running.guessing = share.drafts > 0
            board.calm[running.slot] = calm_until(running, queues.drafting)
    rows |= enumerate(others, len(lineup.slots))
    return Built(step, lineup, _rows(lineup, calm, config.max_num_seqs), rows)


def calm_until(running: Running, drafting: bool) -> int:
    """The first position from `launched` on whose decode is to be looked at by itself, beside pages that it takes and blocks that it
    ends; 0: the next one is. It draws the last token that there may be, or is one of those that never draw like others."""
    job = running.job
    if drafting or running.rungs or job.looks_back or job.request.params.logprobs is not None:
        return 0
    return job.limit - 2 if running.launched >= max(running.given, running.shared) else 0


def _lineup(queues: Queues, config: SchedConfig, calm: Ints, going: Mapping[int, Share]) -> Lineup:
    """Of who runs in one of these slots, in the order of the queue: mostly that of the last step."""
    known, count = queues.lineup, len(calm) + sum(not share.calm for share in going.values())
    if known is not None and len(known.slots) == count == len(queues.running):
        return known  # everyone goes on, as before
    goes_on = _mask(calm, config.max_num_seqs)
    if going:
        goes_on[list(going)] = True
    line = queues.line()
    slots = line[goes_on[line]]
    if known is None or not np.array_equal(known.slots, slots):
        runs = [running for running in queues.running if goes_on[running.slot]]
        queues.lineup = known = Lineup.of(runs, queues.board, config.eos)
    return known


def _rows(lineup: Lineup, calm: Ints, count: int) -> npt.NDArray[np.intp]:
    """The rows of `lineup` that the slots `calm` have; there are `count` slots."""
    if len(calm) == len(lineup.slots):
        return np.arange(len(calm))
    return np.flatnonzero(_mask(calm, count)[lineup.slots])


def _mask(slots: Ints, count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[slots] = True
    return mask


def _decodes(board: Board, lineup: Lineup, shares: Mapping[int, Share], turning: Sequence[Running]) -> Decodes:
    """A decode for each row of `lineup`; `shares` of those rows that come to more than a token, and rows that have a new page."""
    slots = lineup.slots
    starts, known = board.launched[slots], board.named[slots]
    tokens = np.where(starts == board.computed[slots], board.last[slots], LAST_DRAW)
    special = [(row, share.running) for row, share in shares.items() if not share.calm]
    for row, running in special:
        if starts[row] < running.given:  # what it is given to repeat is known, whatever is in flight
            tokens[row] = board.last[running.slot]
    for row, running in special + [(lineup.at[running.slot], running) for running in turning]:
        known[row] = board.name(running.slot, running.table)
    jobs, tables = [(row, running.job) for row, running in special], board.tables
    return Decodes(
        names=lineup.names,
        slots=slots,
        roots=lineup.roots,
        starts=starts,
        tokens=tokens,
        tables=tuple([tables[slot] for slot in lineup.at]),
        known=known,
        params=lineup.params,
        indices=starts + 1 - lineup.prompts,
        histories=tuple([(row, job.tokens.view) for row, job in jobs if job.looks_back]),
        cuts=tuple([(row, Cut(p, pages)) for row, share in shares.items() for p, _, pages in share.rungs]),
    )


def _work(board: Board, share: Share) -> Work:
    running, job = share.running, share.running.job
    start = running.launched
    known = board.name(running.slot, running.table)
    return Work(
        request_id=job.request.id,
        slot=running.slot,
        root=job.root,
        start=start,
        tokens=job.tokens.view[start : share.end - share.drafts],
        pages=board.tables[running.slot],
        write_from=running.shared,
        state=running.start,
        cuts=tuple([Cut(position, pages) for position, _, pages in share.rungs]),
        sample=_sample(running) if share.end >= running.drawn else None,
        score=_score(job, start, share.end),
        known=known,
        drafts=share.drafts,
    )


def _sample(running: Running) -> Sample:
    job = running.job
    index = running.drawn - len(job.request.prompt)
    history = job.tokens.view if job.looks_back else None
    return Sample(job.request.params, index, history, index == 0 and job.audited)


def _score(job: Job, start: int, end: int) -> Score | None:
    """The prompt tokens whose log-probabilities this part of the prompt yields, if they are wanted."""
    top = job.request.params.prompt_logprobs
    if top is None:
        return None
    targets = job.request.prompt[start + 1 : end + 1]
    return Score(targets, top) if len(targets) else None
