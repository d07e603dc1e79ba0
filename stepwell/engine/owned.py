"""An engine loop that owns what it works with: threads, files, locks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from stepwell.base.clock import Clock
from stepwell.base.errors import RequestError
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.disk.archive import Archive
from stepwell.cache.external.ledger import External
from stepwell.cache.moves import Tier
from stepwell.engine.disk_tier import Stored
from stepwell.engine.events.publisher import Publisher
from stepwell.engine.events.teller import Teller
from stepwell.engine.grammar.grammars import Grammars
from stepwell.sched.audit import Auditor
from stepwell.sched.build import UNGUIDED
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import Gain
from stepwell.sched.loop import IDLE_WAIT, EngineLoop
from stepwell.sched.probe import ExternalStore
from stepwell.sched.request import Event, Request
from stepwell.sched.stats import EngineStats
from stepwell.sched.step import Guidance, Mover, Runner
from stepwell.store.disk.health import DiskStats

LOCKING_REST = 0.5
"""Seconds between two looks at how much of host an idle engine has by now, while more of it is being made ready."""


class Growing(Protocol):
    """Host memory of which more and more can be used."""

    @property
    def ready(self) -> int:
        """Slots by now; never falls."""

    @property
    def ended(self) -> bool:
        """Whether no more will become ready."""

    def give_way(self, wanted: bool) -> None:
        """Whether copies are to go before what makes more of it ready."""


class Counting(Protocol):
    """What a worker counts as it works."""

    def compiled(self) -> Mapping[str, int]:
        """Kernels by when they were compiled."""

    def device_bytes(self) -> Mapping[str, int]:
        """Device memory by kind."""

    def ranks(self) -> tuple[Mapping[str, float], ...]:
        """What is counted of each of several ranks, by name."""


class OwnedLoop(EngineLoop):
    """`owned` is closed at the end: movers before the stores that they use. `disk` and `counts` are asked for what they count, `grammars`
    for whether a request's is ready, `pinning` for how much of host can be used by now. `scores`: prompts can be scored. `rest`: seconds
    after which an idle engine is to be asked for its statistics, which tell of ranks that are gone; None: nobody has to. `publisher`
    is told what the cache holds."""

    def __init__(
        self,
        cache: CacheConfig,
        config: SchedConfig,
        runner: Runner,
        mover: Mover,
        clock: Clock,
        costs: Costs | None = None,
        archive: Archive | None = None,
        auditor: Auditor | None = None,
        guidance: Guidance = UNGUIDED,
        gain: Gain | None = None,
        *,
        owned: ExitStack | None = None,
        disk: Stored | None = None,
        grammars: Grammars | None = None,
        pinning: Growing | None = None,
        counts: Counting | None = None,
        scores: bool = True,
        rest: float | None = None,
        publisher: Publisher | None = None,
        external: External | None = None,
        store: ExternalStore | None = None,
    ) -> None:
        super().__init__(cache, config, runner, mover, clock, costs, archive, auditor, guidance, gain, external, store)
        self._time = clock
        self._owned = owned or ExitStack()
        self._disk = disk
        self._grammars = grammars
        self._pinning = pinning
        self._counts = counts
        self._scores = scores
        self._rest = rest
        self._teller = None if publisher is None else Teller(self.directory, publisher)

    @property
    def busy(self) -> bool:
        """Whether a step could do anything: also take what has become ready of host."""
        pinning = self._pinning
        more = pinning is not None and (pinning.ended or pinning.ready > self.directory.pools[Tier.HOST].total)
        return more or super().busy

    @property
    def rest(self) -> float | None:
        """Seconds at most after which to look again at an engine that is not `busy`, and ask for its `stats`; None: not at all. Host may
        grow, or a rank go."""
        return self._rest if self._pinning is None else min(LOCKING_REST, self._rest or LOCKING_REST)

    def prepare(self, request: Request) -> bool:
        """Whether `request` can be taken without holding up the others; begins what is missing for that. Ask again, then submit."""
        params = request.params
        return not params.grammar or self._grammars is None or self._grammars.prepare(request.id, params)

    def submit(self, request: Request) -> None:
        """Take `request`. Raises RequestError or CapacityError, and keeps nothing, if it can never be served."""
        if request.params.grammar and self._grammars is not None and self._grammars.fault is not None:
            raise RequestError(f"this model cannot be held to a grammar: {self._grammars.fault}", "response_format")
        if request.params.prompt_logprobs is not None and not self._scores:
            raise RequestError(
                "prompt_logprobs are not to be had on a GPU with --deterministic: what is computed beside them is summed in another order",
                "prompt_logprobs",
            )
        super().submit(request)
        if self._pinning is not None:
            self._pinning.give_way(True)

    def abort(self, request_id: str) -> None:
        """Drop a request, in whatever state it is, prepared or not."""
        if self._grammars is not None:
            self._grammars.drop(request_id)
        super().abort(request_id)
        self._tell()

    def reset(self, salt: str | None = None) -> dict[Tier, int]:
        dropped = super().reset(salt)
        self._tell()
        return dropped

    def _tell(self) -> None:
        if self._teller is not None:
            self._teller.tell()

    def step(self, *, wait: float = IDLE_WAIT) -> list[Event]:
        """One turn, with as much of host as there is by now. `wait`: seconds to wait at most for a copy where nothing can be computed."""
        if self._pinning is not None:
            self._widen(self._pinning)
        events = super().step(wait=wait)
        if self._pinning is not None:
            self._pinning.give_way(self._copies_matter)
        self._tell()
        return events

    @property
    def _copies_matter(self) -> bool:
        """Whether a request waits for room or for a load, or an idle engine makes use of its time."""
        waits = self.queues.waiting or self.queues.parked
        return bool(waits) or (self.copying and not self.serving)

    def _widen(self, pinning: Growing) -> None:
        """Give the directory the host slots that are ready by now. Once no more will be, tell it so."""
        ended = pinning.ended  # asked first: what was ready by then counts
        if more := pinning.ready - self.directory.pools[Tier.HOST].total:
            self.directory.widen(Tier.HOST, more)
        if ended:
            self.directory.settle(Tier.HOST)
            self._pinning = None

    def stats(self) -> EngineStats:
        stats = super().stats()
        if (counts := self._counts) is not None:
            stats = replace(stats, compiled=counts.compiled(), device_bytes=counts.device_bytes(), ranks=counts.ranks())
        if self._teller is not None:
            stats = replace(stats, event_batches=self._teller.counts)
        return stats if self._disk is None else _with_disk(stats, self._disk.stats(), self._time.now())

    def end(self, seconds: float) -> bool:
        """Write what is worth it, for at most `seconds`, then let go of everything: call nothing else afterwards.

        Returns whether everything was written. What is cut short is lost, and nothing else is.
        """
        try:
            self.auditor.interrupt(self.queues, self.directory)
            self.auditor = Auditor()
            self.directory.config = replace(self.directory.config, copy_idle=False)  # host ends with the process
            deadline = self._time.now() + seconds
            while self.busy and self._time.now() < deadline:
                self.step()
            return not self.busy
        finally:
            self._owned.close()


def _with_disk(stats: EngineStats, disk: DiskStats, now: float) -> EngineStats:
    counts: Mapping[str, float] = {
        "segments": disk.segments,
        "file_bytes": disk.bytes,
        "dormant_pages": disk.dormant_pages,
        "paused_seconds": max(0.0, disk.paused_until - now),
        "written_bytes": disk.bytes_written,
        "rewritten_bytes": disk.bytes_rewritten,
        "read_bytes": disk.bytes_read,
        "records_published": disk.published,
        "records_adopted": disk.adopted,
        "records_forgotten": disk.forgotten,
        "records_deduplicated": disk.deduplicated,
        "records_quarantined": disk.quarantined,
        "failed_writes": disk.failed_writes,
        "failed_reads": disk.failed_reads,
        "compactions": disk.compactions,
    }
    return replace(stats, disk=counts, disk_problems=disk.problems)
