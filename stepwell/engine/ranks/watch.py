"""Looks after the processes of ranks while they serve: who ends, falls silent, fails or computes something else ends them all."""

from __future__ import annotations

import logging
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from stepwell.base.clock import Clock
from stepwell.engine.ranks.channel import Channel
from stepwell.engine.ranks.wire import Alive, Failed, Progress, State, decode_told

log = logging.getLogger(__name__)

LOOK = 0.1
"""Seconds between two looks at the processes."""
_GRACE = 0.3
"""Seconds in which the rank that has really ended shows, where another fails because of it."""
_ALL_HANG = 60.0
"""Seconds after which busy ranks hang although none is ahead of another: a kernel may be compiled meanwhile, on all of them at once."""

_BEGINNING = Progress(0, 0, 0, 0, False)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one rank.

    heard      when it was last heard of
    moved      when it last had come further, or had nothing to do
    behind     since when it has stood still while another rank was ahead of it; None: it moves, or no other is ahead
    failed     why it has failed, by its own account, and when
    """

    heard: float
    moved: float
    progress: Progress = _BEGINNING
    behind: float | None = None
    failed: str = ""
    failed_at: float = 0.0


class Judge:
    """Says which rank is at fault, if one is. Knows no process and no socket."""

    def __init__(self, ranks: int, timeout: float, now: float) -> None:
        """`timeout`: seconds without a sign of life, or of progress where others have made it; 0: any time."""
        self._timeout = timeout
        self._seen = [Seen(now, now) for _ in range(ranks)]
        self._digests: dict[int, dict[int, int]] = {}
        self._differs = ""

    def hear(self, rank: int, told: Alive | Failed, now: float) -> None:
        seen = self._seen[rank]
        if isinstance(told, Failed):
            self._seen[rank] = replace(seen, heard=now, failed=told.reason, failed_at=now)
            return
        stands = told.progress.busy and told.progress == seen.progress
        moved, behind = (seen.moved, seen.behind) if stands else (now, None)
        self._seen[rank] = replace(seen, heard=now, moved=moved, progress=told.progress, behind=behind)
        self._line_up(now)
        for count, digest in told.digests.items():
            of_all = self._digests.setdefault(count, {})
            of_all[rank] = digest
            if len(of_all) == len(self._seen):
                self._compare(count, self._digests.pop(count))

    def fault(self, ended: Mapping[int, int], now: float) -> str:
        """A sentence that names the rank at fault; empty while all is well. `ended`: exit status by rank."""
        killed = {rank: -status for rank, status in ended.items() if status < 0}
        if killed:
            return "; ".join(f"rank {rank} was killed by signal {number}" for rank, number in sorted(killed.items()))
        failed = {rank: seen for rank, seen in enumerate(self._seen) if seen.failed}
        if failed:
            rank = min(failed, key=lambda rank: failed[rank].failed_at)
            late = now - failed[rank].failed_at >= _GRACE
            return f"rank {rank} has failed: {failed[rank].failed}" if late else ""
        if ended:
            return "; ".join(f"rank {rank} ended with status {status}" for rank, status in sorted(ended.items()))
        if self._differs:
            return self._differs
        silent = [rank for rank, seen in enumerate(self._seen) if self._timeout and now - seen.heard > self._timeout]
        if silent:
            names = " and ".join(f"rank {rank}" for rank in silent)
            return f"{names} gave no sign of life for {self._timeout:g} s (--worker-timeout)"
        return self._hanging(now) if self._timeout else ""

    def _line_up(self, now: float) -> None:
        """Note who is behind from now on, and who is no more."""
        first = max(seen.progress.reached for seen in self._seen)
        for rank, seen in enumerate(self._seen):
            if seen.progress.reached == first or not seen.progress.busy:
                self._seen[rank] = replace(seen, behind=None)
            elif seen.behind is None:
                self._seen[rank] = replace(seen, behind=now)

    def _hanging(self, now: float) -> str:
        """Ranks that live and do not come further."""
        behind = [rank for rank, s in enumerate(self._seen) if s.behind is not None and now - s.behind > self._timeout]
        if behind:
            # those who wait for them may be behind others, too
            last = min(self._seen[rank].progress.reached for rank in behind)
            names = [f"rank {rank}" for rank in behind if self._seen[rank].progress.reached == last]
            return f"{' and '.join(names)} came no further for {self._timeout:g} s while others did (--worker-timeout)"
        longest = max(_ALL_HANG, self._timeout)
        if all(now - seen.moved > longest for seen in self._seen):
            return f"all ranks have been busy for {longest:g} s without coming further"
        return ""

    def _compare(self, count: int, digests: Mapping[int, int]) -> None:
        values = list(digests.values())
        odd = [rank for rank, digest in sorted(digests.items()) if values.count(digest) * 2 <= len(values)]
        if odd and not self._differs:
            # of two that differ nobody can say which is right: the first is asked for tokens
            names = " and ".join(f"rank {rank}" for rank in odd if rank or len(odd) == 1)
            self._differs = f"{names} computed other results than the others within the first {count:,} steps"


class Watch:
    """A thread that hears the ranks' signs and looks at their processes. `fault` and `states` may be read on any thread."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[bytes]], signs: Sequence[Channel], timeout: float,
        states: Sequence[State], clock: Clock,
    ) -> None:  # fmt: skip
        """`signs` are the channels on which ranks are heard; until `close` they belong to the thread."""
        self._processes = tuple(processes)
        self._signs = {channel.fileno(): (rank, channel) for rank, channel in enumerate(signs)}
        self._heard = select.poll()
        for channel in signs:
            self._heard.register(channel, select.POLLIN)
        self._clock = clock
        self._judge = Judge(len(processes), timeout, clock.now())
        self._closing = threading.Event()
        self.states = list(states)
        self.fault = ""
        self._thread = threading.Thread(target=self._run, name="stepwell-ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; the processes are left alone. Twice does no harm."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not (self._closing.is_set() or self.fault):
            try:
                fault = self._look()
            except Exception as error:  # unwatched ranks could be waited for without end
                log.exception("ranks can be watched no more")
                fault = f"ranks can be watched no more: {type(error).__name__}: {error}"
            if not self._closing.is_set():
                self.fault = fault
        if self.fault:
            log.error("%s: all ranks are ended", self.fault)
            for process in self._processes:
                process.kill()

    def _look(self) -> str:
        """Wait for signs a while, and look at the processes; what is at fault, empty while all is well."""
        for number, _ in self._heard.poll(1000 * LOOK):
            self._hear(*self._signs[number])
        ended = {rank: status for rank, p in enumerate(self._processes) if (status := p.poll()) is not None}
        return self._judge.fault(ended, self._clock.now())

    def _hear(self, rank: int, channel: Channel) -> None:
        channel.take()
        for message in channel.messages():
            try:
                told = decode_told(message.data)
            except msgspec.DecodeError as error:
                told = Failed(f"it sent what cannot be read ({error})", False)
            if isinstance(told, Alive):
                self.states[rank] = told.state
            if isinstance(told, Alive | Failed):
                self._judge.hear(rank, told, self._clock.now())
        if channel.ended:
            self._heard.unregister(channel)
