"""From a step's works to the arrays of one forward pass. Everything here is on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.model.batch import Batch, Cuts, Longs
from stepwell.sched.step import Cut, Work


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """A step laid out.

    inner     pages that receive the state at each cut of the batch, in order
    sampling  index in the step of each work whose logits are asked for, in the logits' order
    scoring   behind those rows come, for each of these works, the rows of all its targets
    """

    batch: Batch
    inner: tuple[Ints, ...]
    sampling: tuple[int, ...]
    scoring: tuple[int, ...] = ()


def lay_out(works: Sequence[Work], block: int, spare: int, held: bool) -> Laid:
    """Lay the works end to end, those of one token first, by slot: a full set of decodes is then one run of live states.

    spare   the page that takes what must not be stored
    held    live slots keep the inputs of single tokens pending: a cut behind such a token is one of the batch
    """
    decoding = sorted((i for i, w in enumerate(works) if len(w.tokens) == 1), key=lambda i: works[i].slot)
    order = [*decoding, *(i for i, w in enumerate(works) if len(w.tokens) > 1)]
    laid = [works[i] for i in order]
    starts, counts = (_longs(values) for values in ([w.start for w in laid], [len(w.tokens) for w in laid]))
    firsts = np.cumsum(counts) - counts
    positions = np.arange(int(counts.sum())) + np.repeat(starts - firsts, counts)
    pages = np.concatenate([_page_of_each(w, block) for w in laid])
    shared = positions < np.repeat([w.write_from for w in laid], counts)
    cuts = [(row, cut) for row, w in enumerate(laid) for cut in inner_cuts(w, held)]
    sampling = [row for row, w in enumerate(laid) if w.sample is not None]
    scoring = [(row, w.score) for row, w in enumerate(laid) if w.score is not None]
    asked = [firsts[sampling] + counts[sampling] - 1]
    asked += [firsts[row] + np.arange(len(score.targets)) for row, score in scoring]
    batch = Batch(
        tokens=np.concatenate([w.tokens for w in laid]).astype(np.int64),
        positions=positions,
        page=np.where(shared, spare, pages).astype(np.int64),
        offset=positions % block,
        decodes=len(decoding),
        slots=_longs([w.slot for w in laid]),
        starts=starts,
        counts=counts,
        tables=tuple(w.pages for w in laid),
        cuts=Cuts(_longs([row for row, _ in cuts]), _longs([cut.position - laid[row].start for row, cut in cuts])),
        asked=np.concatenate(asked),
    )
    inner = tuple(cut.pages for _, cut in cuts)
    return Laid(batch, inner, tuple(order[row] for row in sampling), tuple(order[row] for row, _ in scoring))


def inner_cuts(work: Work, held: bool) -> list[Cut]:
    """Cuts whose state is not the live one after the pass, ascending."""
    return sorted((cut for cut in work.cuts if not _is_live(cut, work, held)), key=lambda cut: cut.position)


def end_cuts(works: Sequence[Work], held: bool) -> list[tuple[int, Ints]]:
    """(slot, pages) for each cut whose state is the live one after the pass."""
    return [(w.slot, cut.pages) for w in works for cut in w.cuts if _is_live(cut, w, held)]


def _is_live(cut: Cut, work: Work, held: bool) -> bool:
    return cut.position == work.end and not (held and len(work.tokens) == 1)


def _page_of_each(work: Work, block: int) -> Ints:
    """The page of each token."""
    if len(work.tokens) == 1:
        return work.pages[work.start // block : work.start // block + 1]
    pages: Ints = work.pages[np.arange(work.start, work.end) // block]
    return pages


def _longs(values: Sequence[int]) -> Longs:
    return np.array(values, np.int64)
