"""Decodes with drafts laid out evenly: as many rows for each sequence, of which only the first are real.

    batch      a a a │ b │ c c            three decodes with 2, 0 and 1 drafts
    spread     a a a · │ b · · · │ c c · ·

A row of padding is stored on the spare page, seen by no other row, and folded into no state: drafts behind a sequence's own are never
accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepwell.model.batch import Batch, Longs


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """`batch` has `width` rows for each decode.

    counts   int64 [decodes], rows of each that are real
    places   int64, where the real rows of decodes lie
    """

    batch: Batch
    width: int
    counts: Longs
    places: Longs

    @property
    def whole(self) -> bool:
        """Whether every row is real."""
        return len(self.places) == self.width * self.batch.decodes

    @property
    def all_draw(self) -> bool:
        """Whether each row of a decode draws, and these come first."""
        count = len(self.places)
        return len(self.batch.draws) >= count and bool((self.batch.asked[:count] == self.places).all())


def spread(batch: Batch, drafts: int, spare: int) -> Spread:
    """The batch with 1 row for each decode where none has a draft, else 1 + `drafts`; `spare` is the page of padding."""
    decodes = batch.decodes
    counts = batch.counts[:decodes]
    real = int(counts.sum())
    if real == decodes:
        return Spread(batch, 1, counts, np.arange(decodes))
    width = 1 + drafts
    within = np.arange(real) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(np.arange(decodes) * width, counts) + within
    moved = np.concatenate((places, np.arange(real, len(batch.tokens)) + decodes * width - real))

    def placed(column: Longs, empty: Longs | int) -> Longs:
        out = np.empty(len(batch.tokens) - real + decodes * width, np.int64)
        out[: decodes * width] = empty
        out[moved] = column
        return out

    own = np.concatenate((np.full(decodes, width), batch.counts[decodes:]))
    positions = np.repeat(batch.starts[:decodes], width) + np.tile(np.arange(width), decodes)
    even = replace(
        batch,
        tokens=placed(batch.tokens, 0),
        positions=placed(batch.positions, positions),
        page=placed(batch.page, spare),
        offset=placed(batch.offset, 0),
        counts=own,
        asked=moved[batch.asked],
    )
    return Spread(even, width, counts, places)
