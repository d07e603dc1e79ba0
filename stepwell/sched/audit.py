"""Checks resumed prompts while the engine serves: some are computed again from token 0, and the two first answers compared.

    admitted ─▶ watched ─ first token ─▶ pending ─ nothing else to do ─▶ recomputed ─▶ agrees, or its entries are quarantined
                                            ▲                                │
                                            └────── a request arrives ───────┘

An audit is a request of the engine's own that neither reads nor writes the cache. It runs only while the engine is idle, ends as soon as a
request arrives, and takes pages as one more request would.
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
"""Most audits that wait. Each keeps a prompt and the logits of one token; the oldest is dropped for a new one."""

_TRIES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A resumed prompt to be checked: how it was resumed, and the logits of its first token. `tries` audits of it were cut short. It says
    nothing about what is cached once `Directory.condemnations` differs from `condemnations`."""

    salt: str
    prompt: Ints
    outcome: AdmissionOutcome
    logits: Logits
    condemnations: int
    tries: int = 0


@dataclass(slots=True)
class AuditCounts:
    """Audits that ended with a comparison, those of them that differed, audits skipped, and copies quarantined."""

    audits: int = 0
    mismatches: int = 0
    skipped: int = 0
    quarantined: int = 0


def difference(resumed: Logits, cold: Logits) -> float:
    """The largest difference as a share of the largest cold logit. NaN if any logit is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.abs(resumed - cold).max() / max(float(np.abs(cold).max()), float(np.finfo(np.float32).tiny)))


def _needed(case: Case, directory: Directory) -> int:
    """Pages of an audit."""
    return directory.config.geometry.pages_for(len(case.prompt) + 1)


def _instant(directory: Directory) -> int:
    """Number of pages available at once without dropping an only copy."""
    room = directory.room()
    return room.instant - room.reserved


class Auditor:
    """Chooses, runs and judges audits.

    rate       share of resumed admissions that are checked
    tolerance  largest `difference` of two answers that agree; 0: they must be equal
    rng        chooses which are checked; the same seed and admissions give the same audits
    differed   the last cases whose answers differed, the latest last
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
        """True if an audit runs or waits."""
        return self._case is not None or bool(self._pending)

    def choose(self, queues: Queues, directory: Directory) -> None:
        """Choose some of the requests that were admitted just now. Call it after admission, before a step is built."""
        if not self.rate:
            return
        for event in queues.events:
            if isinstance(event, Admitted) and event.outcome.cached and self._rng.random() < self.rate:
                running = queues.find_running(event.request_id)
                if running is not None:
                    running.job.watched = AuditedResume(event.outcome, directory.condemnations)

    def begin(self, queues: Queues, directory: Directory) -> None:
        """Start the next audit, if the engine is idle and there is room."""
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
        """End a running audit, because a request has arrived. It begins again later, a few times at most."""
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
        """Take logits from a step that has been applied: of answers to be checked, or of the audit itself.

        `dropped` are works of requests that had ended before: an audit that was cut short must not judge the next one.
        """
        kept = dict(result.logits)
        first = len(built.step.decodes)  # decodes have drawn their first token before
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
            if (
                watched is None or logits is None or stale or job.starts > 1
            ):  # preempted, and resumed in another way since
                self.counts.skipped += 1
            else:
                how, condemnations = watched.outcome, watched.condemnations
                self._keep(Case(job.request.salt, job.request.prompt, how, logits, condemnations))

    def strip(self, events: list[Event]) -> list[Event]:
        """`events` without those of audits, which no caller waits for."""
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
            return  # nothing to compare; its end counts it as skipped
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
