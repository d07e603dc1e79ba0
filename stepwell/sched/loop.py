"""The engine loop: reports in, admissions, one step, events out.

    submit, abort ─▶ │ land reports ▸ admit ▸ build k ▸ launch k ▸ collect k−1 ▸ publish k−1 ▸ copy down ahead of need │ ─▶ events

Without asynchronous scheduling it collects step k in the turn that launches it. Single-threaded: state changes only inside `submit`,
`abort`, `step` and `drain`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepwell.base.clock import Clock
from stepwell.base.errors import CapacityError, RequestError
from stepwell.base.geometry import Ints
from stepwell.cache.clear import reset
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import Archive
from stepwell.cache.disk.names import root_number
from stepwell.cache.disk.persist import persist_idle
from stepwell.cache.evict.make_room import copy_ahead, copy_idle
from stepwell.cache.external.ledger import External
from stepwell.cache.external.write_behind import write_behind
from stepwell.cache.moves import LiveState, Move, Report, Tier, moves_of
from stepwell.cache.reuse.explain import Explanation, Ladder, ladders
from stepwell.sched.admit import admit, land, look_up
from stepwell.sched.audit import Auditor
from stepwell.sched.board import Board
from stepwell.sched.build import UNGUIDED, Drain, awaits_mask, build, guide, release
from stepwell.sched.compose import Built
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import Always, Gain, decode_time
from stepwell.sched.finish import finish
from stepwell.sched.job import Draining, Job, KnownTokens
from stepwell.sched.meter import Meter
from stepwell.sched.outlook import Outlook, explained, outlook
from stepwell.sched.overdue import Deadlines, expire, is_stranded, refuse_stranded, relieve
from stepwell.sched.probe import ExternalStore, probe, tell
from stepwell.sched.queues import Queues, ServingOrder, enqueue, withdraw
from stepwell.sched.request import MAX_PRIORITY, Event, Finished, Request
from stepwell.sched.retention import Prefetched, Retention, Subject
from stepwell.sched.stats import EngineStats
from stepwell.sched.step import Guidance, Mover, Pass, Runner
from stepwell.sched.suspend import let_go

IDLE_WAIT = 0.05
_ROOM = 4096
"""Tokens of an answer that memory is allocated for at once, so that a long prompt is not copied again for a short answer."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step whose result has not been collected."""

    built: Built
    computing: Pass
    began: float


class EngineLoop:
    """The scheduler. Serving, simulation and tests use the same class with other runners, movers and clocks."""

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
        external: External | None = None,
        store: ExternalStore | None = None,
    ) -> None:
        config.validate(cache.geometry)
        self.config = config
        self.directory = Directory(cache, archive, external)
        self.meter = Meter(costs or Costs(), config.deterministic)
        self.costs = self.meter.costs
        order = ServingOrder(config.priority_ageing, config.fair_salts, self.costs.prefill_tokens_per_s)
        self.queues = Queues(list(range(config.max_num_seqs - 1, -1, -1)), order, Board(config.max_num_seqs))
        self.auditor = auditor or Auditor()
        self.retention = Retention(self.directory, config.load_timeout, config.records_a_turn)
        self._runner = runner
        self._mover, self._store = mover, store
        self._guidance = guidance
        self._gain = gain or Always()
        self._clock = clock
        self._copying: dict[int, tuple[Tier, int]] = {}  # by ticket: tier that a load reads (device: not a load), bytes
        self._deadlines = Deadlines(config.load_timeout)
        self._rested = self.directory.epoch  # the epoch at which nothing was left to be copied down while idle
        self._steps = 0
        self._computed = 0
        self._sampled = 0
        self._seconds = 0.0
        self._with_runner = 0.0
        self._collected = 0.0  # when the last result was there
        self._launched: deque[_Launched] = deque()
        self._copied: Counter[tuple[Tier, Tier]] = Counter()

    @property
    def longest(self) -> int:
        """Most tokens of one request, prompt and answer together: the limit of the model or of the device."""
        pool = self.directory.config.device_pages * self.directory.tree.block
        return min(self.config.max_model_len, pool)

    @property
    def busy(self) -> bool:
        """True if a call of `step` could do anything."""
        directory, external = self.directory, self.directory.external
        below = len(directory.pools) > 1 and directory.epoch != self._rested
        beyond = external is not None and bool(external.unstored or self.queues.external_hits or self.queues.probing)
        return self.serving or bool(directory.in_flight or directory.overdue) or below or beyond

    @property
    def serving(self) -> bool:
        """True if any request, audit or hint is not finished."""
        q = self.queues
        waited_for = q.waiting or q.parked or q.draining or q.running or q.events or self._launched
        return bool(waited_for or self.auditor.busy or self.retention.busy)

    @property
    def copying(self) -> bool:
        """True if a copy is under way."""
        return bool(self._copying)

    def submit(self, request: Request) -> None:
        """Take `request`. Raises RequestError or CapacityError, and keeps nothing, if it can never be served."""
        count = len(request.prompt)
        if count == 0:
            raise RequestError("the prompt is empty: send at least one token", "prompt")
        if self.config.vocab and not (int(request.prompt.min()) >= 0 and int(request.prompt.max()) < self.config.vocab):
            raise RequestError(f"prompt token ids must be between 0 and {self.config.vocab - 1}", "prompt")
        if count >= self.longest:
            raise CapacityError(
                f"the prompt has {count} tokens, but prompt and answer together may have at most {self.longest}",
                needed=count + 1,
                available=self.longest,
            )
        wanted = request.params.max_tokens
        if wanted is not None and wanted < 1:
            raise RequestError(f"max_tokens must be at least 1, not {wanted}", "max_tokens")
        if abs(request.priority) > MAX_PRIORITY:
            raise RequestError(f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", "priority")
        self.auditor.interrupt(self.queues, self.directory)
        if self._knows(request.id):
            raise RequestError(f"a request with id {request.id!r} is being served already", "request_id")
        limit = self.longest if wanted is None else min(self.longest, count + wanted)
        place = self.queues.order.place(request, self._clock.now())
        tokens = KnownTokens(request.prompt, min(limit - count, _ROOM))
        job = Job(request, place, tokens, limit, root_number(request.salt))
        if self.config.cache and request.read_cache and self.directory.archive.catalogue.pages:
            self.queues.asking[job] = self._clock.now()
        enqueue(self.queues, job)

    def abort(self, request_id: str) -> None:
        """End a request, whatever its state. Ignores unknown ids. What copies and launched steps still use is freed at their end."""
        queues = self.queues
        waiting, running = queues.find_waiting(request_id), queues.find_running(request_id)
        parked = queues.parked.pop(request_id, None)
        if waiting is not None:
            withdraw(queues, waiting)
            if waiting.suspended is not None:
                let_go(self.directory, waiting.suspended)
                queues.slots.append(waiting.suspended.slot)
        elif running is not None:
            release(queues, self.directory, running)
        elif parked is not None:
            if parked.suspended is not None:
                let_go(self.directory, parked.suspended)
            self.directory.promise(parked.loading.held.table, 0)
            queues.draining.append(Draining(parked.slot, parked.loading, self._clock.now()))
        else:
            return
        queues.events.append(Finished(request_id, "abort"))

    def step(self, *, wait: float = IDLE_WAIT) -> list[Event]:
        """One turn of the loop. `wait`: most seconds to wait for a copy if nothing can be computed. Returns what callers are to hear."""
        began, with_runner = self._clock.now(), self._with_runner
        for report in self._mover.poll():
            self._heard(report)
            land(self.queues, self.directory, self.config, report, self._clock)
        self.costs = self.meter.costs  # the same for all of this turn
        self._deadlines.turn(self.directory, began)
        self.directory.archive.lookups.turn(self.config.records_a_turn, began, self.config.load_timeout)
        expire(self.queues, self.directory, self.config, self._clock)
        self.queues.moves.extend(self.retention.turn(began))
        self.auditor.begin(self.queues, self.directory)
        if self.queues.asking:
            look_up(self.queues, self.directory, self.config, began)
        probe(self.queues, self.directory, self.config, self._store, began)
        admit(self.queues, self.directory, self.config, self.costs, self._clock)
        refuse_stranded(self.queues, self.directory, self.config, self._clock)
        self.auditor.choose(self.queues, self.directory)
        self._start_moves()
        built = self._build()
        self._start_moves()
        if built is not None:
            self._launch(built)
        leave = 1 if built is not None and self.config.async_scheduling else 0
        idle = built is None and not self._launched
        self._collect(leave)
        self._copy_down(idle)
        self._seconds += self._clock.now() - began - (self._with_runner - with_runner)
        events, self.queues.events = self.auditor.strip(self.queues.events), []
        if self.directory.archive.lookups.put_off and not self.busy:
            self.directory.archive.lookups.rest()
        if idle and not events:
            self._wait(wait)
        return events

    def _wait(self, seconds: float) -> None:
        """Wait for a mask, for a copy, or for the end of a compaction, at most `seconds`. Called if nothing can be computed."""
        if self.queues.running and self._guidance.wait(seconds):
            return
        budgeted = self.busy and not self.serving  # writes to disk wait for their budget
        if self._copying or budgeted or self.queues.probing:
            self._mover.wait(seconds)
        elif self.directory.archive.lookups.held:
            self.directory.archive.wait(seconds)

    def drain(self) -> None:
        """Collect all launched steps; the next turn returns their events."""
        self._collect(0)

    def launched(self) -> Iterator[Built]:
        """Launched steps that have not been collected, oldest first."""
        return (one.built for one in self._launched)

    def stats(self) -> EngineStats:
        queues, directory = self.queues, self.directory
        return EngineStats(
            waiting=len(queues.waiting),
            parked=len(queues.parked),
            draining=len(queues.draining),
            running=len(queues.running),
            tiers=(directory.use(Tier.DEVICE), directory.use(Tier.HOST), directory.use(Tier.DISK)),
            leases=len(directory.leases),
            nodes=directory.items,
            moves_in_flight=len(self._copying),
            moves_overdue=len(directory.overdue),
            steps=self._steps,
            computed_tokens=self._computed,
            sampled_tokens=self._sampled,
            preemptions=queues.preemptions,
            rungs_left=queues.rungs_left,
            rungs_skipped=queues.rungs_skipped,
            sched_seconds=self._seconds,
            tally=replace(queues.tally, reasons=dict(queues.tally.reasons), lost=dict(queues.tally.lost)),
            joint=queues.tally.joint_line(),
            audits=self.auditor.counts.audits,
            audit_mismatches=self.auditor.counts.mismatches,
            audits_skipped=self.auditor.counts.skipped,
            quarantined=self.auditor.counts.quarantined,
            pins=len(directory.pins.known),
            prefetches={status.value: count for status, count in self.retention.counts.prefetches.items()},
            prefetched_tokens=self.retention.counts.prefetched_tokens,
            drafts={at: (count, queues.drafts.accepted[at]) for at, count in queues.drafts.computed.items()},
            drafting=queues.drafting,
            pages_copied=dict(self._copied),
            page_bytes=directory.config.geometry.page_bytes,
            prefill=(self.costs.prefill_tokens_per_s, self.costs.attention_s_per_pair),
        )

    def explain(self, salt: str, prompt: Ints, read: bool = True) -> Explanation:
        """What would be reused of `prompt` if it came now, and why. Changes nothing."""
        return explained(self.queues, self.directory, self.config, self.costs, self._clock.now(), salt, prompt, read)

    def outlook(self, salt: str, prompt: Ints, read: bool = True) -> Outlook:
        """When `prompt` would have its first token if it came now. Changes nothing."""
        return outlook(self.queues, self.directory, self.config, self.costs, salt, prompt, read)

    def reset(self, salt: str | None = None) -> dict[Tier, int]:
        """Drop everything that is not leased, under one salt or under all. Returns the slots freed by tier."""
        return reset(self.directory, salt)

    def ladders(self, count: int, owner: str = "") -> tuple[Ladder, ...]:
        """The `count` paths that were used last, of one owner's salts or of all, and what is cached of them."""
        return ladders(self.queues.trails, self._clock.now(), count, owner)

    def pin(self, subject: Subject, seconds: float) -> int:
        """Pin what is cached of a prompt for `seconds`: it is dropped last. Returns the number of tokens pinned."""
        now = self._clock.now()
        return self.retention.pin(subject, now + seconds, now)

    def unpin(self, subject: Subject) -> int:
        """End a pin. Returns the number of tokens that were pinned."""
        return self.retention.unpin(subject)

    def prefetch(self, number: int, subject: Subject) -> None:
        """Begin to load a prompt to the device, beside running requests. `prefetched` returns the result under `number`."""
        self.queues.moves.extend(self.retention.prefetch(number, subject, self._clock.now()))

    def prefetched(self) -> list[Prefetched]:
        """Prefetches that have ended since the last call."""
        return self.retention.finished()

    def _build(self) -> Built | None:
        """The next step. If that takes a preemption, the launched step is collected first."""
        now = self._clock.now()
        if self.config.drafts and self.queues.running:
            self.queues.draft(self._gain.wants(len(self.queues.running)))
        given = self.queues, self.directory, self.config, self.costs, now
        built = build(*given, in_flight=bool(self._launched), guidance=self._guidance)
        if isinstance(built, Drain):
            self.drain()
            built = build(*given, guidance=self._guidance)
            assert not isinstance(built, Drain), "nothing is in flight any more"
        if built is None and not self._launched and self._is_stuck(now):
            built = build(*given, guidance=self._guidance)  # a mask may have become ready since
            assert not isinstance(built, Drain), "nothing is in flight"
            if built is None and self._is_stuck(now):
                relieve(self.queues, self.directory, self.config)
        return built

    def _is_stuck(self, now: float) -> bool:
        """True if running requests can continue only when overdue copies end."""
        stranded = bool(self.queues.running) and is_stranded(self.queues, self.directory, self.config, now)
        return stranded and not awaits_mask(self.queues, self._guidance)

    def _launch(self, built: Built) -> None:
        began = self._clock.now()
        self._launched.append(_Launched(built, self._runner.launch(built.step), began))
        self._with_runner += self._clock.now() - began

    def _collect(self, leave: int) -> None:
        """Collect and publish launched steps until `leave` are left, oldest first."""
        while len(self._launched) > leave:
            began = self._clock.now()
            one = self._launched.popleft()
            result, now = one.computing.result(), self._clock.now()
            self._with_runner += now - began
            self.meter.computed(one.built.step, now - max(one.began, self._collected))
            self._collected = now
            if self.config.drafts:
                self._gain.saw(decode_time(one.built.step, result, now))
            dropped = finish(self.queues, self.directory, self.config, one.built, result, now)
            self.auditor.collect(self.directory, one.built, result, dropped)
            guide(one.built, self._guidance)
            self._steps += 1
            self._computed += one.built.step.tokens
            self._sampled += sum(map(len, result.sampled))

    def _copy_down(self, idle: bool) -> None:
        """Copies ahead of need; with nothing else to do, to host what it has free slots for, and to disk whatever is worth it."""
        directory, now = self.directory, self._clock.now()
        self.queues.moves.extend(copy_ahead(directory, self.costs, now))
        self.queues.moves.extend(write_behind(directory, now))
        if idle and not self.serving and directory.epoch != self._rested:
            copies = copy_idle(directory, self.costs)
            self.queues.moves.extend(copies.moves)
            more = persist_idle(directory, self.costs, now) or copies.refused > 0
            self._rested = self._rested if more or directory.in_flight else directory.epoch
        self._start_moves()

    def _start_moves(self) -> None:
        tell(self.directory, self._store)
        tasks = [*self.directory.archive.send(), *self.queues.moves]
        self.queues.moves = []
        if tasks:
            moves = moves_of(tasks)
            self._count(moves)
            self._mover.start(tasks)

    def _count(self, moves: list[Move]) -> None:
        now = self._clock.now()
        for move in moves:
            target = Tier.DEVICE if isinstance(move.target, LiveState) else move.target.tier
            self._copied[move.source.tier, target] += len(move.source.slots)
            size = len(move.source.slots) * self.directory.config.geometry.page_bytes
            source = move.source.tier if target < move.source.tier else Tier.DEVICE  # copies down are not timed
            self._copying[move.ticket] = (source, size)
            self._deadlines.began(move.ticket, now)

    def _heard(self, report: Report) -> None:
        """Note the end of a copy. The time of a load updates the speed of its tier."""
        source, size = self._copying.pop(report.ticket, (Tier.DEVICE, 0))
        if report.ok and source != Tier.DEVICE:
            self.meter.copied(source, size, report.seconds)

    def _knows(self, request_id: str) -> bool:
        queues = self.queues
        return (
            request_id in queues.parked
            or queues.find_waiting(request_id) is not None
            or queues.find_running(request_id) is not None
        )
