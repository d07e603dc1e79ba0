"""A trace played against a server that speaks the OpenAI API: the same lanes, a real clock, the same report."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.replay.dialects import Dialect, speaks, usage_in
from stepwell.replay.gauges import Gauges, parse
from stepwell.replay.lanes import Source, TraceRequest
from stepwell.replay.ledger import Ledger
from stepwell.replay.report import Course, Summary, summarise
from stepwell.replay.simulate import Phases, ProgressBar, progress_bar
from stepwell.replay.text import Text
from stepwell.replay.wire import Server, Usage, call_of, connected, events, first_model, usage_of

_READINGS = 120
_AFTER_FAILURE = 1.0
_LONGEST_NAP = 0.25


@dataclass(slots=True)
class LiveReplay:
    """One live replay in the making. `phases` are real seconds; `scale` real seconds pass for each second of the source."""

    source: Source
    server: Server
    text: Text
    phases: Phases
    scale: float = 1.0
    ledger: Ledger = field(init=False)
    gauges: Gauges = field(init=False)
    split: bool = field(init=False, default=True)
    trouble: str = field(init=False, default="")
    _model: str = field(init=False, default="")
    _began: float = field(init=False, default=0.0)
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ConfigError(f"--time-scale must be above 0, not {self.scale}")
        self.ledger = Ledger(self.phases.warmup, tells_reasons=False)
        self.gauges = Gauges(max(1.0, self.phases.end / _READINGS))

    def now(self) -> float:
        """Real seconds since the start."""
        return time.monotonic() - self._began

    async def run(self, progress: ProgressBar | None = None) -> None:
        """Play it all. Raises StepwellError where the server cannot be used at all."""
        async with connected(self.server) as client:
            self._model = await first_model(client, self.server)
            self._began = time.monotonic()
            reader = asyncio.create_task(self._read_gauges(client))
            await self._send_all(client, progress)
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await self._read(client)
        self.ledger.abandon(self.now())
        if self.ledger.rows and all(row.failed for row in self.ledger.rows):
            raise StepwellError(f"every request failed, the last with: {self.trouble}")

    async def _send_all(self, client: Any, progress: ProgressBar | None) -> None:
        """Until the phases end, or the source has nothing left and every answer has come."""
        while (now := self.now()) < self.phases.end:
            for request in self.source.due(now / self.scale):
                self.ledger.send(request, now)
                task = asyncio.create_task(self._play(client, request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            upcoming = self.source.next_time()
            if upcoming is None and not self._tasks:
                return
            until = self.phases.end if upcoming is None else min(self.phases.end, upcoming * self.scale)
            nap = max(0.0, min(_LONGEST_NAP, until - self.now()))
            # An answer may make a request due at once, so its end ends the nap.
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=nap, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(nap)
            if progress is not None:
                progress.show(self.now(), self.ledger.played)

    async def _play(self, client: Any, request: TraceRequest) -> None:
        from openai import OpenAIError

        sent = self.now()
        prompt = self.text.prompt(request.conversation, request.stream, request.index, request.edition)
        failed = False
        try:
            await self._listen(client, request, *call_of(request, prompt, self._model, self.server), sent)
        except OpenAIError as error:
            failed, self.trouble = True, str(error)
        except StepwellError as error:
            failed, self.trouble = True, str(error)
        self.ledger.finish(request.id, failed, self.now())
        if failed:
            await asyncio.sleep(_AFTER_FAILURE)
        self.source.finished(request, self.now() / self.scale)

    async def _listen(
        self, client: Any, request: TraceRequest, dialect: Dialect, body: dict[str, Any], sent: float
    ) -> None:
        heard = 0
        usage: Usage | None = None
        async for event in events(client, dialect, body, request.session):
            if not heard and speaks(dialect, event):
                heard = 1
                self.ledger.answer(request.id, 1, self.now())
            usage = usage_of(usage_in(dialect, event)) or usage
        if usage is None:
            raise StepwellError("the answer came without usage: the server must support stream_options.include_usage")
        self.split = self.split and usage.split
        self.ledger.admit(_outcome(request.id, usage), sent)
        if usage.answer > heard:
            self.ledger.answer(request.id, usage.answer - heard, self.now())

    async def _read_gauges(self, client: Any) -> None:
        while True:
            await self._read(client)
            await asyncio.sleep(max(0.0, len(self.gauges.readings) * self.gauges.every - self.now()))

    async def _read(self, client: Any) -> None:
        """One reading; a server without metrics tells nothing."""
        from openai import OpenAIError

        try:
            answer = await client.get(f"{self.server.base}/metrics", cast_to=str)
            counters = parse(answer)
        except (OpenAIError, ValueError):
            counters = {}
        self.gauges.readings.append((self.now(), counters))


def _outcome(name: str, usage: Usage) -> AdmissionOutcome:
    cached = usage.prompt - usage.recomputed
    return AdmissionOutcome(
        name,
        prompt=usage.prompt,
        device=usage.device,
        host=usage.host,
        disk=usage.disk,
        recomputed=usage.recomputed,
        boundary=cached,
        hit=usage.device,
        state_tier=None,
        reason=Reason.COMPLETE,
    )


def play_live(replay: LiveReplay, told: tuple[tuple[str, str], ...], console: Console | None = None) -> Summary:
    """Run it, behind a progress bar if there is a console. Raises StepwellError."""
    began = time.monotonic()
    if console is None:
        asyncio.run(replay.run())
    else:
        with progress_bar(replay.phases, console) as progress:
            asyncio.run(replay.run(progress))
    gauges, start = replay.gauges, replay.ledger.start
    gauges.explain(replay.ledger.admitted, start)
    course = Course("live", told, replay.now(), time.monotonic() - began)
    return summarise(replay.ledger, course, gauges.traffic(), gauges.rungs(start), replay.split)
