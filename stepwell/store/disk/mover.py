"""Moves to and from disk beside the compute: one thread writes, several read.

start ──▶ inbox (bounded) ──▶ writer: batches, in order ──┐
      └─▶ queue ────────────▶ readers: each with memory ──┴─▶ reports ──▶ poll
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import StoreError
from stepwell.base.units import ceil_to
from stepwell.cache.moves import Extent, LiveState, Move, Report, Task, Tier
from stepwell.store.arena import Rows
from stepwell.store.disk.gate import Fence, Gate
from stepwell.store.disk.inbox import Copy, DiskTask
from stepwell.store.disk.record import Kind
from stepwell.store.disk.store import DiskStore
from stepwell.store.tickets import CopyTotal, Tickets, Way, describe

PIECE_BYTES = 16 << 20
"""Bytes that a reader has in memory at a time, unless one image has more."""


class DiskMover:
    """A `Mover` (see `stepwell.sched.step`) for moves that touch the disk, and orders.

    Every ticket is reported exactly once, whatever happens. Reports of moves to disk come once their records can be found again.
    `start`, `poll`, `wait`, `drain` and `close` belong to one thread, the engine's. The store is not closed with the mover.
    """

    def __init__(self, store: DiskStore, gate: Gate, *, readers: int = 4, clock: Clock | None = None) -> None:
        assert readers >= 1
        self._store = store
        self._gate = gate
        self._clock = clock or WallClock()
        self._tickets = Tickets(store.layout.page_bytes)
        self._busy = 0  # batches being written
        self._reads: deque[tuple[Move, Fence]] = deque()
        self._reads_changed = threading.Condition()
        self._closing = False
        self._threads = [threading.Thread(target=self._write, name="stepwell-disk-writer", daemon=True)]
        self._threads += [
            threading.Thread(target=self._read, name=f"stepwell-disk-reader-{i}", daemon=True) for i in range(readers)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> DiskMover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen(self, ring: Callable[[], None]) -> None:
        """Have `ring` called, on any thread, after each report."""
        self._tickets.listen(ring)

    def start(self, tasks: Sequence[Task]) -> None:
        """Queue these; never waits. A ticket must not be open already. StoreError once the mover is closed."""
        if self._closing:
            raise StoreError("the disk mover is closed: it takes no more moves")
        moves = [task for task in tasks if isinstance(task, Move)]
        reads = [move for move in moves if move.source.tier == Tier.DISK]
        rest = [task for task in tasks if not (isinstance(task, Move) and task.source.tier == Tier.DISK)]
        self._tickets.open(moves)
        if rest:
            for move in self._store.inbox.submit(rest, self._gate.fence):
                self._tickets.end(move, "queue full: the disk cannot keep up with the copies asked of it")
        if reads:
            fence = self._gate.fence()
            with self._reads_changed:
                self._reads.extend((move, fence) for move in reads)
                self._reads_changed.notify(len(reads))

    def poll(self) -> list[Report]:
        """Reports since the last call; never waits."""
        return self._tickets.poll()

    def wait(self, seconds: float) -> None:
        """Wait until `poll` would return something, at most `seconds`."""
        self._tickets.wait(seconds)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until every move has ended and every order is carried out; `poll` still returns the reports. False if time ran out."""
        return self._tickets.drain(seconds, lambda: not (self._busy or len(self._store.inbox)))

    def close(self) -> None:
        """Finish what has begun, fail the moves that have not, carry out the orders, end the threads. Twice does no harm."""
        self._closing = True
        for changed in (self._reads_changed, self._store.inbox.changed):
            with changed:
                changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def closing(self) -> bool:
        """True once `close` has been called: nothing more will begin."""
        return self._closing

    def totals(self) -> dict[Way, CopyTotal]:
        """Copies so far by (from, to); None is a live state. Seconds are those of a batch for moves to disk, shared by size."""
        return self._tickets.totals()

    # ---- writing ------------------------------------------------------------------------------------------

    def _write(self) -> None:
        inbox, page = self._store.inbox, self._store.layout.page_bytes
        while True:
            with inbox.changed:
                inbox.changed.wait_for(lambda: len(inbox) or self._closing)
                if not len(inbox) and self._closing:
                    return
                with self._tickets.changed:
                    self._busy += 1
            self._write_batch(inbox.take(self._store.batch_bytes, page))
            with self._tickets.changed:
                self._busy -= 1
                self._tickets.changed.notify_all()

    def _write_batch(self, jobs: list[DiskTask]) -> None:
        moves = {job.move.ticket: job.move for job in jobs if isinstance(job, Copy)}
        if self._closing:
            for move in moves.values():
                self._tickets.end(move, "the disk mover was closed before this copy began")
            jobs, moves = [job for job in jobs if not isinstance(job, Copy)], {}
        begun = self._clock.now()
        try:
            reports = self._store.write(jobs, self._gate)
        except Exception as error:
            reports = [Report(ticket, False, describe(error)) for ticket in moves]
        seconds = self._clock.now() - begun
        pages = sum(len(moves[report.ticket].source.slots) for report in reports if report.ok)
        for report in reports:
            move = moves[report.ticket]
            why = "" if report.ok else report.error or "the write failed"
            self._tickets.end(move, why, seconds * len(move.source.slots) / max(1, pages))

    # ---- reading ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        memory: Rows | None = None
        while True:
            with self._reads_changed:
                self._reads_changed.wait_for(lambda: self._reads or self._closing)
                if not self._reads:
                    return
                move, fence = self._reads.popleft()
            if self._closing:
                self._tickets.end(move, "the disk mover was closed before this copy began")
                continue
            begun = self._clock.now()
            try:
                if memory is None:
                    memory = self._gate.memory(self._piece())
                self._read_one(move, fence, memory)
            except Exception as error:
                self._tickets.end(move, describe(error))
            else:
                self._tickets.end(move, "", self._clock.now() - begun)

    def _read_one(self, move: Move, fence: Fence, memory: Rows) -> None:
        def deliver(part: slice, rows: Rows) -> None:
            target = move.target
            if isinstance(target, Extent):
                target = replace(target, slots=target.slots[part])
            self._gate.deliver(target, rows, fence)

        have = len(move.source.slots)
        if isinstance(move.target, Extent) and len(move.target.slots) != have:
            raise StoreError(
                f"move {move.ticket} copies {have} slots to {len(move.target.slots)}: both sides must be as long"
            )
        if isinstance(move.target, LiveState) and move.what != "image":
            raise StoreError(f"move {move.ticket} takes KV to a live state: only an image goes there")
        self._store.read(move, memory, deliver)

    def _piece(self) -> int:
        """Pages that a reader holds in memory: of whole records, so that as a rule no reading begins inside one."""
        layout = self._store.layout
        return ceil_to(max(layout.image_pages, PIECE_BYTES // layout.page_bytes), layout.most_pages(Kind.KV))
