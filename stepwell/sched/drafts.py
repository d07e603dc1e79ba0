"""How many drafts an answer's next step computes, and how many were accepted."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from stepwell.cache.directory import Directory
from stepwell.cache.shed import secure
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Running

log = logging.getLogger(__name__)

LEAST_KNOWN, LEAST_SHARE = 1000, 0.2
"""Drafts after which their share that was right is looked at, and the share below which it is told."""


@dataclass(slots=True)
class DraftCounts:
    """Drafts that were computed, and those of them that were accepted, by position: 1 for the first behind a drawn token.

    The log says so once where the first `LEAST_KNOWN` are hardly ever right.
    """

    computed: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def add(self, drafts: int, drawn: int) -> None:
        """An answer's step had so many drafts, and has drawn so many tokens."""
        self.computed.update(range(1, drafts + 1))
        self.accepted.update(range(1, min(drafts + 1, drawn)))
        if drafts and self.computed[1] == LEAST_KNOWN and self.accepted[1] < LEAST_SHARE * LEAST_KNOWN:
            log.warning(
                "of the first %d drafts %d were right: they are turned off where they cost more than they save; "
                "is this checkpoint's draft layer (mtp.*) trained?",
                LEAST_KNOWN,
                self.accepted[1],
            )


def drafts_of(directory: Directory, config: SchedConfig, running: Running) -> int:
    """Drafts that the next decode of an answer computes; none where none were made behind its last step, or where the next token depends
    on the last in ways that the model does not know of.

    Takes the pages for these, and for those that the runner drafts next, if they are had at nobody's cost.
    """
    job, start = running.job, running.launched
    if not running.guessed or job.looks_back or not running.goes_on:
        return 0
    wanted = min(config.drafts, job.limit - running.drawn - 1)
    count = directory.config.geometry.pages_for(min(job.limit, start + 1 + 2 * config.drafts)) - len(running.table)
    if wanted and count > 0 and is_idle(directory, count):
        directory.grow(running.table, count)
    return min(wanted, len(running.table) * directory.tree.block - start - 1)


def is_idle(directory: Directory, count: int) -> bool:
    """Whether `count` pages can be taken at no one's cost; if so, they are free now."""
    return directory.spendable >= count and secure(directory, count)
