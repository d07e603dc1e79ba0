"""Turns what each request is to compute into a step, and remembers what its results will mean.

A decode that only draws a token is a row in columns (`stepwell.sched.board`) without an object of its own. Any other part of a step is
a `Share`.
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

    drafts  number of drafts among the last tokens up to `end`: how many are right is known once the step has been collected
    calm    a calm decode that ends a block: its token is handed out with those of all calm rows, and only the block is published
    """

    running: Running
    end: int
    rungs: tuple[tuple[int, RungKind, Ints], ...] = ()
    drafts: int = 0
    calm: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A step, and the requests that it belongs to.

    lineup  requests of the decodes       calm  rows whose tokens are handed out together
    shares  by index in the step, ascending: those of all other works, and of rows of `calm` that end a block
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
    """The step of these shares, and of one token for each request in the slots `calm`; requests in `turning` have got a new page for it.
    Its tokens count as launched from now on, so the caller launches it. O(shares) objects, and a few arrays of all rows."""
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
    """The first position from `launched` on whose decode needs attention of its own (new pages and ended blocks apart): it may draw the
    last token. 0 if the next one does already, as for drafts, grammars, log-probabilities and due rungs."""
    job = running.job
    if drafting or running.rungs or job.looks_back or job.request.params.logprobs is not None:
        return 0
    return job.limit - 2 if running.launched >= max(running.given, running.shared) else 0


def _lineup(queues: Queues, config: SchedConfig, calm: Ints, going: Mapping[int, Share]) -> Lineup:
    """The lineup of the requests in these slots, in the order of the queue; mostly that of the last step."""
    known, count = queues.lineup, len(calm) + sum(not share.calm for share in going.values())
    if known is not None and len(known.slots) == count == len(queues.running):
        return known  # the same requests continue
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
    """The rows of the slots `calm` in `lineup`; there are `count` slots in all."""
    if len(calm) == len(lineup.slots):
        return np.arange(len(calm))
    return np.flatnonzero(_mask(calm, count)[lineup.slots])


def _mask(slots: Ints, count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[slots] = True
    return mask


def _decodes(board: Board, lineup: Lineup, shares: Mapping[int, Share], turning: Sequence[Running]) -> Decodes:
    """A decode for each row of `lineup`. `shares` are those of rows with more than a token, `turning` requests with a new page."""
    slots = lineup.slots
    starts, known = board.launched[slots], board.named[slots]
    tokens = np.where(starts == board.computed[slots], board.last[slots], LAST_DRAW)
    special = [(row, share.running) for row, share in shares.items() if not share.calm]
    for row, running in special:
        if starts[row] < running.given:  # it repeats known tokens, whatever is in flight
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
    """The prompt tokens whose log-probabilities this part of the prompt yields; None if they are not wanted."""
    top = job.request.params.prompt_logprobs
    if top is None:
        return None
    targets = job.request.prompt[start + 1 : end + 1]
    return Score(targets, top) if len(targets) else None
