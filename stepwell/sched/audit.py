"""Checking resumes while they serve: some prompts are computed once more, cold, and the two answers compared.

    admitted ─▶ watched ─ first token ─▶ pending ─ nothing else to do ─▶ recomputed ─▶ agrees, or its entries are quarantined
                                            ▲                                │
                                            └────── a request arrives ───────┘

An audit is a request of the engine's own that neither reads the cache nor writes it. It runs only while nobody waits, and ends
as soon as somebody does; the pages that it takes are those that one more request would take.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.clear import quarantine
from stepwell.cache.directory import Directory
from stepwell.cache.disk.names import root_number
from stepwell.cache.evict.make_room import demote
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.sched.build import release
from stepwell.sched.compose import Built
from stepwell.sched.job import AuditedResume, Job, KnownTokens
from stepwell.sched.queues import Queues, enqueue
from stepwell.sched.request import Admitted, Event, Finished, Request, SamplingParams
from stepwell.sched.step import Logits, StepResult

log = logging.getLogger("stepwell.audit")

PENDING = 16
"""Audits that may wait. Each keeps a prompt and the logits of one token; the oldest gives way."""

_TRIES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A resumed prompt to be checked: how it was resumed, and what it answered. `tries` were cut short by requests. It says nothing
    about what is cached now once `Directory.condemnations` is no longer `condemnations`."""

    salt: str
    prompt: Ints
    outcome: AdmissionOutcome
    logits: Logits
    condemnations: int
    tries: int = 0


@dataclass(slots=True)
class AuditCounts:
    """Audits that ended with an answer, those of them that differed, those that could not be held, copies taken out."""

    audits: int = 0
    mismatches: int = 0
    skipped: int = 0
    quarantined: int = 0


def difference(resumed: Logits, cold: Logits) -> float:
    """The largest difference, as a share of the largest cold logit; NaN where either is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.abs(resumed - cold).max() / max(float(np.abs(cold).max()), float(np.finfo(np.float32).tiny)))


def _needed(case: Case, directory: Directory) -> int:
    """Pages of an audit."""
    return directory.config.geometry.pages_for(len(case.prompt) + 1)


def _instant(directory: Directory) -> int:
    """Pages that can be had at once without losing an only copy."""
    room = directory.room()
    return room.instant - room.reserved


class Auditor:
    """Chooses, holds and judges audits.

    rate       share of resumed admissions that are checked
    tolerance  `difference` up to which two answers agree; 0: they are equal
    rng        draws which; the same seed and admissions give the same audits
    differed   the last resumes that answered otherwise than a cold run, the latest last
    """

    def __init__(self, rate: float = 0.0, tolerance: float = 0.0, rng: random.Random | None = None) -> None:
        self.rate = rate
        self.tolerance = tolerance
        self.counts = AuditCounts()
        self.differed: deque[Case] = deque(maxlen=PENDING)
        self._rng = rng or random.Random(0)
        self._pending: deque[Case] = deque()
        self._case: Case | None = None
        self._name = ""
        self._begun = 0

    @property
    def busy(self) -> bool:
        """Whether an audit is under way, or waits for its turn."""
        return self._case is not None or bool(self._pending)

    def choose(self, queues: Queues, directory: Directory) -> None:
        """Watch some of those who were admitted just now: after admission, before a step is built."""
        if not self.rate:
            return
        for event in queues.events:
            if isinstance(event, Admitted) and event.outcome.cached and self._rng.random() < self.rate:
                running = queues.find_running(event.request_id)
                if running is not None:
                    running.job.watched = AuditedResume(event.outcome, directory.condemnations)

    def begin(self, queues: Queues, directory: Directory) -> None:
        """Start the next audit, if nothing else is to be done and it has room."""
        if self._case is not None or queues.waiting or queues.parked or queues.running or queues.events:
            return
        while self._pending:
            needed = _needed(self._pending[0], directory)
            if needed > _instant(directory):
                queues.moves.extend(demote(directory, needed - _instant(directory)))
                if directory.in_flight:
                    return
            case = self._pending.popleft()
            if needed <= _instant(directory) and case.condemnations == directory.condemnations:
                self._start(queues, case)
                return
            self.counts.skipped += 1

    def interrupt(self, queues: Queues, directory: Directory) -> None:
        """A request has arrived: end what is under way, to be begun again later."""
        case, self._case = self._case, None
        if case is None:
            return
        running, waiting = queues.find_running(self._name), queues.find_waiting(self._name)
        if running is not None:
            release(queues, directory, running)
        elif waiting is not None:
            queues.waiting.remove(waiting)
        if case.tries + 1 < _TRIES and len(self._pending) < PENDING:
            self._pending.appendleft(replace(case, tries=case.tries + 1))
        else:
            self.counts.skipped += 1

    def collect(self, directory: Directory, built: Built, result: StepResult, dropped: Set[int]) -> None:
        """Take the logits of a step that has run and been applied: answers to be checked, or the one that checks.

        `dropped` are the works of requests that had ended before; an audit that was cut short must not judge the next one.
        """
        kept = dict(result.logits)
        first = len(built.step.decodes)  # whose first tokens have been drawn long since
        for index, work in enumerate(built.step.parts, first):
            share = built.shares[index]
            if work.sample is None or not work.sample.keep_logits or index in dropped:
                continue
            job, logits = share.running.job, kept.get(index)
            if job.internal:
                self._judge(directory, logits)
                continue
            watched, job.watched = job.watched, None
            stale = watched is None or watched.condemnations != directory.condemnations
            if watched is None or logits is None or stale or job.starts > 1:  # preempted: resumed in another way
                self.counts.skipped += 1
            else:
                how, condemnations = watched.outcome, watched.condemnations
                self._keep(Case(job.request.salt, job.request.prompt, how, logits, condemnations))

    def strip(self, events: list[Event]) -> list[Event]:
        """`events` without those of audits, which are nobody's business."""
        if not self._name:
            return events
        mine = [event for event in events if event.request_id == self._name]
        if self._case is not None and any(isinstance(event, Finished) for event in mine):
            self._case = None  # it was refused, or its numbers went wrong
            self.counts.skipped += 1
        rest = [event for event in events if event.request_id != self._name]
        self._name = self._name if self._case is not None else ""
        return rest

    def _start(self, queues: Queues, case: Case) -> None:
        self._begun += 1
        self._case, self._name = case, f"audit {self._begun}"
        once = SamplingParams(max_tokens=1)
        request = Request(self._name, case.prompt, once, case.salt, read_cache=False, write_cache=False)
        count = len(case.prompt)
        order = (-inf, 0)  # it runs alone
        enqueue(queues, Job(request, order, KnownTokens(case.prompt), count + 1, root_number(case.salt), internal=True))

    def _keep(self, case: Case) -> None:
        self._pending.append(case)
        if len(self._pending) > PENDING:
            self._pending.popleft()
            self.counts.skipped += 1

    def _judge(self, directory: Directory, cold: Logits | None) -> None:
        case = self._case
        if case is None or cold is None or not np.isfinite(cold).all():
            return  # nothing to compare with: its end counts it as skipped
        self._case = None
        self.counts.audits += 1
        off = difference(case.logits, cold)
        if off <= self.tolerance or case.condemnations != directory.condemnations:  # the former is false for NaN
            return
        self.counts.mismatches += 1
        self.differed.append(case)
        copies = quarantine(directory, case.salt, case.prompt)
        self.counts.quarantined += copies
        log.error(
            "a resumed prompt answers otherwise than a cold one: logits differ by %.3g of the largest, %.3g is allowed; "
            "%s %s; recomputed cold: 0 of %d tokens from the cache; %d cached copies of this prefix are taken out",
            *(off, self.tolerance, case.outcome.request_id, case.outcome.in_one_line(), len(case.prompt), copies),
        )
