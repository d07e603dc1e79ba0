"""The progress of reading weights: a bar on a terminal, else a line in the log every few seconds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from stepwell.base.clock import Clock
from stepwell.base.units import format_size
from stepwell.model.checkpoint import Progress as Report

log = logging.getLogger(__name__)

_EVERY = 5.0
"""Seconds between two lines of the log."""


@contextmanager
def reading_progress(clock: Clock, console: Console | None = None) -> Iterator[Report]:
    """What to give to `load_decoder` as its `progress`; the end of the block ends the bar. `console`: standard error by default."""
    console = console or Console(stderr=True)
    began = clock.now()
    if not console.is_terminal:
        yield _Lines(clock, began)
        return
    columns = (
        TextColumn("reading weights"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """Logs a line now and then, and none where reading takes less than that."""

    __slots__ = ("_began", "_clock", "_due")

    def __init__(self, clock: Clock, began: float) -> None:
        self._clock = clock
        self._began = began
        self._due = began + _EVERY

    def __call__(self, done: int, total: int) -> None:
        now = self._clock.now()
        if now < self._due:
            return
        self._due = now + _EVERY
        speed = format_size(int(done / (now - self._began)))
        log.info("reading weights: %.0f %% of %s, %s/s", 100 * done / total, format_size(total), speed)
