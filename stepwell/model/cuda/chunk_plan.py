"""Where the chunks of prompts lie, on the host: what `ops/triton/chunked.Chunks` holds, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.model.batch import Longs
from stepwell.ops.triton.chunked import CHUNK


def plan_chunks(counts: Longs, slots: Longs, cuts: Sequence[tuple[int, int]]) -> list[Longs]:
    """The fields of `Chunks` in order, for sequences laid end to end.

    counts   [sequences], rows of each, at least one
    slots    [sequences], their live slots
    cuts     (sequence, rows before the cut), by sequence and ascending, none twice: cut i gives its state to column i

    A sequence is cut into chunks of 64 rows from its first row on; a cut that is not on that grid ends a chunk early, and the
    grid begins anew there.
    """
    lasts = np.cumsum(counts)
    begins = lasts - counts
    firsts, sizes, columns, number = [], [], [], []
    for sequence, count in enumerate(counts.tolist()):
        ends = [(after, column) for column, (which, after) in enumerate(cuts) if which == sequence]
        at, own = 0, 0
        for end, column in ends if ends and ends[-1][0] == count else [*ends, (count, -1)]:
            first = np.arange(at, end, CHUNK)
            firsts.append(first + begins[sequence])
            sizes.append(np.minimum(CHUNK, end - first))
            columns += [-1] * (len(first) - 1) + [column]
            own, at = own + len(first), end
        number.append(own)
    return [
        np.concatenate(firsts), np.concatenate(sizes), np.array(columns, np.int64), np.repeat(begins, number),
        np.repeat(slots, number), np.cumsum([0, *number]), slots, lasts,
    ]  # fmt: skip
