"""The positions of all running requests, as columns indexed by live slot: a step reads and advances all of them at once.

A decoding request draws one token a step, and in most steps nothing else happens to it:

    0 ───── computed ──── launched ───────────────────────── calm ──▶
    │ collected          │ a token each · a new page where    │ the last token there may be,
                         │ the last is full · a block ended   │ or something that only this request has

New pages and ended blocks follow from the columns. The scheduler handles a request by itself if its next decode is not below `calm`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.cache.slots import BlockTable

_NO_PAGES: Ints = np.empty(0, np.int32)


class Board:
    """One entry for each live slot; the entry of a slot without a running request means nothing.

    computed  launched    see `stepwell.sched.job.Running`, which has no copy of them
    calm      decodes from `launched` to below it draw one token each and need no attention of their own; 0: the next one does
    last      the last token that is known          given   tokens that were known when it began to run
    prompts   tokens of the prompt            roots   as `Decodes.roots`
    named     pages that its last step was given, and `tables`: these
    """

    __slots__ = ("calm", "computed", "given", "last", "launched", "named", "prompts", "roots", "tables")

    def __init__(self, slots: int) -> None:
        self.computed: Ints = np.zeros(slots, np.int32)
        self.launched: Ints = np.zeros(slots, np.int32)
        self.calm: Ints = np.zeros(slots, np.int32)
        self.given: Ints = np.zeros(slots, np.int32)
        self.last: Ints = np.zeros(slots, np.int32)
        self.prompts: Ints = np.zeros(slots, np.int32)
        self.named: Ints = np.zeros(slots, np.int32)
        self.roots: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self.tables: list[Ints] = [_NO_PAGES] * slots

    def begin(self, slot: int, computed: int, tokens: Ints, prompt: int, root: int) -> None:
        """A request begins to run in `slot` at position `computed`. It has `tokens`, the first `prompt` of which are its prompt."""
        self.computed[slot] = self.launched[slot] = computed
        self.calm[slot] = self.named[slot] = 0
        self.given[slot], self.last[slot] = len(tokens), tokens[-1]
        self.prompts[slot] = prompt
        self.roots[slot] = root

    def name(self, slot: int, table: BlockTable) -> int:
        """Note that the next step of `slot` names the pages of `table`. Returns how many of these its last step named, unchanged."""
        pages, known = table.name()
        self.tables[slot] = pages
        self.named[slot] = len(pages)
        return known

    def is_quiet(self, slots: Ints, block: int) -> bool:
        """True if the next step of each of `slots` is a calm decode that neither takes a page nor ends a block."""
        launched = self.launched[slots]
        bounds = np.minimum(self.calm[slots], self.named[slots] * block)
        return bool(np.logical_and(launched < bounds, (launched + 1) % block).all())

    def decodes(self, slots: Ints) -> npt.NDArray[np.bool_]:
        """For each of `slots`, whether its next step is a token, the last of a prompt or one of an answer."""
        return np.asarray(self.launched[slots] + 1 >= self.given[slots])

    def lacks_page(self, slots: Ints, block: int) -> npt.NDArray[np.bool_]:
        """For each of `slots` that decodes, whether its next token is the first on a page that it does not have yet."""
        return np.asarray(self.launched[slots] >= self.named[slots] * block)

    def ends_block(self, slots: Ints, block: int) -> npt.NDArray[np.bool_]:
        """For each of `slots` that decodes, whether its next token is the last of a block."""
        return np.asarray((self.launched[slots] + 1) % block == 0)

    def is_calm(self, slots: Ints) -> npt.NDArray[np.bool_]:
        """For each of `slots`, whether its next decode is calm."""
        return np.asarray(self.launched[slots] < self.calm[slots])
