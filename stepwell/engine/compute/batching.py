"""From a step to the arrays of one forward pass. Everything here is on the host; decodes stay arrays all the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.engine.compute.wishes import Wishes
from stepwell.model.batch import Ahead, Batch, Cuts, Draws, Longs
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import FIRST_DRAFT, Cut, Sample, Step, Work

_NO_SAMPLE = Sample(SamplingParams(), 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """How steps are laid out.

    block   tokens of a page
    spare   the page that takes what must not be stored
    held    live slots keep the inputs of single tokens pending: states behind such a token are looked at ahead
    apart   a prompt's part of one token is computed as its other parts are, not as an answer's
    """

    block: int
    spare: int
    held: bool
    apart: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The sequences whose next token is drawn, in the order of their logits.

    works      index in the step of each; one with drafts is there once more for each
    names      request ids
    indices    int64, counts of earlier draws
    histories  (row, prompt and answer so far), where the params look back on it
    special    rows whose logits are looked at, or changed, before the draw
    kept       rows whose logits are handed out as they come
    """

    works: tuple[int, ...]
    names: tuple[str, ...]
    params: tuple[SamplingParams, ...]
    indices: Longs
    histories: tuple[tuple[int, Ints], ...] = ()
    special: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Cutting:
    """States to be looked at ahead: `pages` receive them, `rows` are those of the batch before each cut."""

    ahead: Ahead
    rows: Longs
    pages: tuple[Ints, ...]

    def part(self, first: int, count: int) -> Cutting:
        """`count` of them, from the `first` on."""
        own, a = slice(first, first + count), self.ahead
        return Cutting(Ahead(a.slots[own], a.starts[own], a.after[own]), self.rows[own], self.pages[own])


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """A step laid out.

    inner     pages that receive the state at each cut of the batch, in order
    ends      (slot, pages) for each cut whose state is the live one after the pass
    ahead     pages that receive states which are to be looked at ahead, and of each the row before it
    scoring   (index in the step, work) of those whose targets are scored: their rows of logits follow those of `asked`
    sampled   int64, the sequence of each row of `asked`
    """

    batch: Batch
    inner: tuple[Ints, ...]
    ends: tuple[tuple[int, Ints], ...]
    ahead: Cutting
    asked: Asked
    scoring: tuple[tuple[int, Work], ...]
    sampled: Longs


@dataclass(frozen=True, slots=True, eq=False)
class _Sequences:
    """In the order of the batch; `works` are indices in the step, `tokens` lie end to end, drafts behind their own."""

    works: list[int]
    tokens: Longs
    slots: Longs
    starts: Longs
    counts: Longs
    drafts: Longs
    known: Longs
    write_from: Longs
    tables: list[Ints]
    decodes: int


def lay_out(step: Step, layout: Layout, wishes: Wishes) -> Laid:
    """Lay the sequences end to end, those of one token first, by slot: a full set of decodes is then one run of live states."""
    if not step.parts:
        return _lay_out_decodes(step, layout, wishes)
    of = _sequences(step, layout.apart)
    ends = np.cumsum(of.counts)
    firsts, parts = ends - of.counts, step.parts
    positions = np.arange(len(of.tokens)) + np.repeat(of.starts - firsts, of.counts)
    shared = positions < np.repeat(of.write_from, of.counts)
    past = len(step.decodes)
    drawing = [row for row, i in enumerate(of.works) if i < past or parts[i - past].sample is not None]
    sampled, behind = _each_draft(np.array(drawing, np.int64), of.drafts)
    asked, draws = _asked(step, of, sampled, behind, wishes)
    scoring = [(row, i) for row, i in enumerate(of.works) if i >= past and parts[i - past].score is not None]
    works = tuple((i, parts[i - past]) for _, i in scoring)
    targets = [firsts[row] + np.arange(_targets(work)) for (row, _), (_, work) in zip(scoring, works, strict=True)]
    cutting = _cuts(step, of, layout.held)
    inner = cutting.inner
    cuts = Cuts(_longs([row for row, _ in inner]), _longs([cut.position - int(of.starts[row]) for row, cut in inner]))
    rows = np.concatenate((ends[sampled] - 1 - of.drafts[sampled] + behind, *targets))
    batch = Batch(
        tokens=of.tokens,
        positions=positions,
        page=np.where(shared, layout.spare, _page_of_each(of, layout.block)),
        offset=positions % layout.block,
        decodes=of.decodes,
        slots=of.slots,
        starts=of.starts,
        counts=of.counts,
        tables=tuple(of.tables),
        known=of.known,
        cuts=cuts,
        asked=rows,
        draws=draws,
        plain=not asked.special,
    )  # fmt: skip
    pages = tuple([cut.pages for _, cut in inner])
    ahead = _cutting(of.slots, of.starts, firsts, cutting.held)
    return Laid(batch, pages, tuple(cutting.live), ahead, asked, works, sampled)


def _lay_out_decodes(step: Step, layout: Layout, wishes: Wishes) -> Laid:
    """The same where nothing but decodes is computed: each is one row, and draws. Most steps are such, and of few rows: a dozen small
    arrays instead of fifty. A cut is the live state after the pass, unless inputs are held."""
    decodes, going = step.decodes, wishes.going(step.decodes)
    order, every = going.order, np.arange(len(decodes))
    starts, indices = decodes.starts[order].astype(np.int64), decodes.indices[order].astype(np.int64)
    tables = tuple([decodes.tables[i] for i in going.works])
    pages, offset = np.divmod(starts, layout.block)
    told = dict(decodes.histories)
    asked = Asked(
        works=going.works,
        names=going.names,
        params=going.params,
        indices=indices,
        histories=tuple([(at, told[i]) for at, i in enumerate(going.works) if i in told]) if told else (),
        special=going.special(indices),
    )
    batch = Batch(
        tokens=decodes.tokens[order].astype(np.int64),
        positions=starts,
        page=_longs([table[i] for table, i in zip(tables, pages.tolist(), strict=True)]),
        offset=offset,
        decodes=len(decodes),
        slots=going.draws.slots,
        starts=starts,
        counts=np.ones(len(decodes), np.int64),
        tables=tables,
        known=decodes.known[order].astype(np.int64),
        cuts=_NO_CUTS,
        asked=every,
        draws=going.drawn(indices),
        plain=not asked.special,
    )
    if not decodes.cuts:
        return Laid(batch, (), (), _NOTHING_AHEAD, asked, (), every)
    row_of = dict(zip(going.works, range(len(decodes)), strict=True))
    cuts = [(row_of[i], cut) for i, cut in decodes.cuts]
    if layout.held:
        return Laid(batch, (), (), _cutting(batch.slots, starts, every, cuts), asked, (), every)
    ends = tuple([(int(batch.slots[row]), cut.pages) for row, cut in cuts])
    return Laid(batch, (), ends, _NOTHING_AHEAD, asked, (), every)


def _each_draft(rows: Longs, drafts: Longs) -> tuple[Longs, Longs]:
    """Each of these sequences once, and once more for each of its drafts; and how many of its own come before."""
    counts = 1 + drafts[rows]
    return np.repeat(rows, counts), _within(counts)


def _within(counts: Longs) -> Longs:
    """0 … count − 1 for each of `counts`.

    >>> _within(np.array([1, 3])).tolist()
    [0, 0, 1, 2]
    """
    within: Longs = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return within


def _sequences(step: Step, apart: bool) -> _Sequences:
    decodes, first = step.decodes, len(step.decodes)
    parts = list(enumerate(step.parts, first))
    ones, longs = ([one for one in parts if _decodes(one[1], apart) is single] for single in (True, False))
    slots = np.concatenate((decodes.slots, _longs([work.slot for _, work in ones])))
    by_slot = np.argsort(slots, kind="stable")

    def column(of_decodes: Ints, of_works: Callable[[Work], int]) -> Longs:
        singles = np.concatenate((of_decodes, _longs([of_works(work) for _, work in ones])))[by_slot]
        return np.concatenate((singles, _longs([of_works(work) for _, work in longs])))

    singles = np.concatenate((decodes.tokens, *(work.tokens for _, work in ones)))[by_slot]
    drafts = column(np.zeros(first, np.int32), lambda work: work.drafts)
    counts = 1 + drafts[: len(by_slot)]
    behind = _within(counts)
    singles = np.where(behind == 0, np.repeat(singles, counts), FIRST_DRAFT + 1 - behind)
    works, tables = [*range(first), *(i for i, _ in ones)], [*decodes.tables, *(work.pages for _, work in ones)]
    order = by_slot.tolist()
    return _Sequences(
        works=[works[row] for row in order] + [i for i, _ in longs],
        tokens=np.concatenate((singles, *(work.tokens for _, work in longs))).astype(np.int64),
        slots=column(decodes.slots, lambda work: work.slot),
        starts=column(decodes.starts, lambda work: work.start),
        counts=np.concatenate((counts, _longs([len(work.tokens) for _, work in longs]))),
        drafts=drafts,
        known=column(decodes.known, lambda work: work.known),
        write_from=column(np.zeros(first, np.int32), lambda work: work.write_from),
        tables=[tables[row] for row in order] + [work.pages for _, work in longs],
        decodes=len(order),
    )


def _decodes(work: Work, apart: bool) -> bool:
    """True if the pass computes `work` as it computes a decode: one token, and drafts behind it."""
    answers = work.drafts > 0 or (work.sample is not None and work.sample.index > 0)
    return len(work.tokens) == 1 and (answers or not apart)


def _asked(step: Step, of: _Sequences, rows: Longs, behind: Longs, wishes: Wishes) -> tuple[Asked, Draws]:
    """What is asked of the pass for the sequences `rows`, and how they draw: each a token, behind `behind` drafts of its own.
    A sequence with drafts is among `rows` once more for each of them."""
    decodes, first = step.decodes, len(step.decodes)
    told = dict(decodes.histories)
    names, params, indices = list(decodes.names), list(decodes.params), decodes.indices.tolist()
    kept = set()
    for i, work in enumerate(step.parts, first):
        sample = work.sample or _NO_SAMPLE
        names.append(work.request_id)
        params.append(sample.params)
        indices.append(sample.index)
        if sample.history is not None:
            told[i] = sample.history
        if sample.keep_logits:
            kept.add(i)
    works = [of.works[row] for row in rows.tolist()]
    own, counts = tuple([params[i] for i in works]), _longs([indices[i] for i in works]) + behind
    draws = wishes.draws(of.slots[rows], own, counts)
    asked = Asked(
        works=tuple(works),
        names=tuple([names[i] for i in works]),
        params=own,
        indices=counts,
        histories=tuple([(at, told[i]) for at, i in enumerate(works) if i in told]),
        special=tuple(wishes.special(draws.slots, counts)),
        kept=tuple([at for at, i in enumerate(works) if i in kept]),
    )
    return asked, draws


@dataclass(frozen=True, slots=True, eq=False)
class _Cuts:
    """The cuts of a step by how their states are had; a row is the index of a sequence in the batch.

    inner   (row, cut), ascending: the pass hands the state out
    held    (row, cut): the state is looked at ahead, behind tokens that are not folded yet
    live    (slot, pages): it is the live state after the pass
    """

    inner: list[tuple[int, Cut]]
    held: list[tuple[int, Cut]]
    live: list[tuple[int, Ints]]


def _cuts(step: Step, of: _Sequences, held: bool) -> _Cuts:
    first = len(step.decodes)
    every = [*step.decodes.cuts, *((i, cut) for i, work in enumerate(step.parts, first) for cut in work.cuts)]
    if not every:
        return _Cuts([], [], [])
    row_of = {work: row for row, work in enumerate(of.works)}
    out = _Cuts([], [], [])
    for i, cut in every:
        row = row_of[i]
        if held and row < of.decodes:
            out.held.append((row, cut))
        elif cut.position == of.starts[row] + of.counts[row]:
            out.live.append((int(of.slots[row]), cut.pages))
        else:
            out.inner.append((row, cut))
    out.inner.sort(key=lambda one: (one[0], one[1].position))
    return out


def _cutting(slots: Longs, starts: Longs, firsts: Longs, held: Sequence[tuple[int, Cut]]) -> Cutting:
    """`held` cuts by sequence, whose slots, starts and first rows in the batch the arrays are."""
    if not held:
        return _NOTHING_AHEAD
    sequences, positions = _longs([row for row, _ in held]), _longs([cut.position for _, cut in held])
    after = positions - starts[sequences]
    ahead = Ahead(slots[sequences], starts[sequences], after)
    return Cutting(ahead, firsts[sequences] + after - 1, tuple([cut.pages for _, cut in held]))


def _page_of_each(of: _Sequences, block: int) -> Longs:
    """The page of each token."""
    first = 0 if of.drafts.any() else of.decodes
    singles = (of.starts[:first] // block).tolist()
    pages = _longs([int(table[at]) for table, at in zip(of.tables, singles, strict=False)])
    longs = [
        table[np.arange(start, start + count) // block]
        for table, start, count in zip(
            of.tables[first:], of.starts[first:].tolist(), of.counts[first:].tolist(), strict=True
        )
    ]
    return np.concatenate((pages, *longs))


def _targets(work: Work) -> int:
    return 0 if work.score is None else len(work.score.targets)


def _longs(values: Sequence[int]) -> Longs:
    return np.array(values, np.int64)


_NONE = _longs([])
_NO_CUTS = Cuts(_NONE, _NONE)
_NOTHING_AHEAD = Cutting(Ahead(_NONE, _NONE, _NONE), _NONE, ())
