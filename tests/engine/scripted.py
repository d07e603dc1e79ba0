"""An engine loop that follows a script: the shape of the real one, without a cache or a model.

The answer to a prompt is the prompt again, over and over. Prompts of some fixed tokens trigger faults.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from stepwell.base.errors import CapacityError, RequestError
from stepwell.cache.hints import Status
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.explain import Explanation, Ladder
from stepwell.cache.reuse.outcome import AdmissionCounts, AdmissionOutcome, Loss, Reason
from stepwell.cache.slots import TierUse
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.sched.outlook import Outlook
from stepwell.sched.request import Admitted, Event, Finished, Loads, Request, Tokens
from stepwell.sched.retention import Prefetched, Subject
from stepwell.sched.stats import EngineStats

EOS = 2
VOCAB = 320
CONTEXT = 4096
RAISES = 301
FAILS = 302
REFUSED = 303
TOO_LARGE = 304
SLOW = 305
LOADED = 306


class ScriptedLoop:
    """Admits everything at once unless `gate` is closed, what holds `LOADED` a turn later; one token a sequence and step.
    Grammars wait for `ready`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting: list[Request] = []
        self.running: dict[str, tuple[Request, int]] = {}
        self.aborted: list[str] = []
        self.ended: list[float] = []
        self.waits: list[float] = []
        self.seen: list[Request] = []
        self.shown: tuple[Ladder, ...] = ()
        self.watched: list[tuple[int, str]] = []
        self.loads: set[str] = set()
        self.ready = threading.Event()
        self.ready.set()
        self._prompts: list[np.ndarray] = []
        self._events: list[Event] = []
        self._steps = 0
        self.prefetches: list[Prefetched] = []

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running or self._events)

    @property
    def serving(self) -> bool:
        return self.busy

    @property
    def rest(self) -> float | None:
        return None

    @property
    def copying(self) -> bool:
        return False

    def end(self, seconds: float) -> bool:
        self.ended.append(seconds)
        return not self.busy

    def prepare(self, request: Request) -> bool:
        return not request.params.grammar or self.ready.is_set()

    def submit(self, request: Request) -> None:
        if REFUSED in request.prompt:
            raise RequestError("the loop does not like this prompt", "prompt")
        if TOO_LARGE in request.prompt:
            raise CapacityError("this prompt can never fit: raise --device-memory", 900, 100)
        self.seen.append(request)
        self.waiting.append(request)

    def abort(self, request_id: str) -> None:
        known = request_id in self.running or any(r.id == request_id for r in self.waiting)
        self.waiting = [r for r in self.waiting if r.id != request_id]
        self.running.pop(request_id, None)
        if known:
            self.aborted.append(request_id)
            self._events.append(Finished(request_id, "abort"))

    def step(self, wait: float = 0.05) -> list[Event]:
        self.waits.append(wait)
        self._steps += 1
        if not self.gate.is_set():
            self.gate.wait(0.005)
        events, self._events = self._events, []
        if self.gate.is_set():
            waiting, self.waiting = self.waiting, []
            for request in waiting:
                if LOADED in request.prompt and request.id not in self.loads:
                    self.loads.add(request.id)
                    self.waiting.append(request)
                    events.append(Loads(request.id))
                else:
                    self.running[request.id] = (request, 0)
                    events.append(Admitted(request.id, self._outcome(request)))
        for request_id in list(self.running):
            events += self._decode(request_id)
        return events

    def pin(self, subject: Subject, seconds: float) -> int:
        return len(subject.prompt)

    def unpin(self, subject: Subject) -> int:
        return len(subject.prompt)

    def prefetch(self, number: int, subject: Subject) -> None:
        self.prefetches.append(Prefetched(number, Status.RESIDENT))

    def prefetched(self) -> list[Prefetched]:
        done, self.prefetches = self.prefetches, []
        return done

    def stats(self) -> EngineStats:
        none = TierUse(total=0, free=0, cached=0, leased=0, clean=0)
        return EngineStats(
            waiting=len(self.waiting),
            parked=0,
            draining=0,
            running=len(self.running),
            tiers=(replace(none, total=9, free=7, cached=2), none, none),
            leases=0,
            nodes=len(self._prompts),
            moves_in_flight=0,
            moves_overdue=0,
            steps=self._steps,
            computed_tokens=0,
            sampled_tokens=0,
            preemptions=0,
            rungs_left=0,
            rungs_skipped=0,
            sched_seconds=0.25,
            tally=AdmissionCounts(),
            joint="joint: nothing yet",
            pages_copied={(Tier.DEVICE, Tier.HOST): self._steps},
            page_bytes=4096,
        )

    def explain(self, salt: str, prompt: np.ndarray, read: bool) -> Explanation:
        cached = max((_common(prompt, p) for p in self._prompts), default=0) if read else 0
        return Explanation(len(prompt), cached, cached, cached, 0, (), (), None, (), 1, None, None)

    def outlook(self, salt: str, prompt: np.ndarray, read: bool) -> Outlook:
        cached = max((_common(prompt, p) for p in self._prompts), default=0) if read else 0
        return Outlook(len(prompt), cached, Tier.DEVICE, 0.0, (len(prompt) - cached) / 1000, 0.0, len(self.running))

    def reset(self, salt: str | None) -> dict[Tier, int]:
        freed = len(self._prompts)
        self._prompts.clear()
        return {Tier.DEVICE: freed, Tier.HOST: 0}

    def ladders(self, count: int, owner: str) -> tuple[Ladder, ...]:
        self.watched.append((count, owner))
        return self.shown[:count]

    def _decode(self, request_id: str) -> list[Event]:
        request, done = self.running[request_id]
        params = request.params
        token = int(request.prompt[done % len(request.prompt)])
        if token == RAISES:
            raise RuntimeError("the script says so")
        if token == FAILS:
            del self.running[request_id]
            return [Finished(request_id, "error", "the numbers of this request went wrong")]
        if token == SLOW:
            threading.Event().wait(0.02)
        self.running[request_id] = (request, done + 1)
        ends = token in params.stop_token_ids or (token == EOS and not params.ignore_eos)
        reason = (
            "stop" if ends and done + 1 > params.min_tokens else "length" if done + 1 == params.max_tokens else None
        )
        events: list[Event] = [Tokens(request_id, (token,))]
        if reason is not None:
            del self.running[request_id]
            events.append(Finished(request_id, reason))  # type: ignore[arg-type]
        return events

    def _outcome(self, request: Request) -> AdmissionOutcome:
        prompt = request.prompt
        cached = max((_common(prompt, p) for p in self._prompts), default=0) if request.read_cache else 0
        cached = min(cached, len(prompt) - 1) // 16 * 16
        if request.write_cache:
            self._prompts.append(prompt)
        cold = len(prompt) - cached
        outcome = AdmissionOutcome(
            request.id, len(prompt), 0, 0, 0, cold, cached, cached, None, Reason.COMPLETE, ((Loss.NEW, cold),)
        )
        return replace(outcome, device=cached, state_tier=Tier.DEVICE) if cached else outcome


def _common(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def facts(config: EngineConfig) -> EngineFacts:
    phases = (("making weights", 2.0), ("measuring copies", 0.01))
    return EngineFacts(
        config.name, config.max_model_len or CONTEXT, VOCAB, (("pages", "7", "of 4 KiB"),), phases=phases
    )


def build(config: EngineConfig, report: Report) -> ScriptedLoop:
    """An engine factory."""
    report(facts(config))
    return ScriptedLoop()


class Lingering(ScriptedLoop):
    """Has a great deal to write before it ends."""

    def end(self, seconds: float) -> bool:
        threading.Event().wait(seconds)
        return False


def build_lingering(config: EngineConfig, report: Report) -> ScriptedLoop:
    report(facts(config))
    return Lingering()


def build_slowly(config: EngineConfig, report: Report) -> ScriptedLoop:
    """A factory that takes longer than any test waits."""
    threading.Event().wait(60)
    return build(config, report)


def build_never(config: EngineConfig, report: Report) -> ScriptedLoop:
    """A factory that fails."""
    raise RuntimeError("no such machine")
