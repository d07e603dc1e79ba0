"""Looks after the engine's process: notices that it has ended or hangs, and starts it again where that is wanted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from stepwell.base.clock import Clock
from stepwell.base.errors import EngineDead
from stepwell.engine.process.spawn import EngineProcess
from stepwell.server.commands.options import Care
from stepwell.server.generation.client import EngineClient
from stepwell.server.observe.observer import Observer

log = logging.getLogger("stepwell.server")

LOOK = 1.0
"""Seconds between two looks at an engine."""
WINDOW = 600.0
"""Seconds for which a restart counts."""
_LONGEST_WAIT = 60.0
_LEAST_BUILD = 600.0  # seconds that a restarted engine may take to be built, at least
_BUILDS = 5.0  # and as a multiple of what the first one took


class Vigil:
    """Judges an engine by its signs of life.

    What counts is looks without a new sign, not time: where the front end itself was held up, or the machine slept, the engine is not to
    blame. Signs come from a thread of their own, so a long prompt or a kernel that is compiled does not stop them; it only makes one turn
    of the loop long, for which the bound is another.
    """

    def __init__(self, care: Care, every: float = LOOK) -> None:
        """`every`: seconds between two looks."""
        self._care = care
        self._every = every
        self._seen = -1
        self._missed = 0
        self._turn = self._held = self._last = 0.0

    def begin(self) -> None:
        """Another engine serves from now on."""
        self._seen, self._missed, self._held = -1, 0, 0.0

    def look(self, signs: int, turn_s: float, now: float) -> str:
        """What hangs, after `signs` signs of life in all, the last of which told of a turn of `turn_s` seconds; empty while all is well.

        Time in which the front end itself did not look does not count for the turn: both processes may have been stopped meanwhile.
        """
        self._missed = 0 if signs != self._seen else self._missed + 1
        self._seen = signs
        self._held = 0.0 if turn_s < self._turn else self._held
        if self._last and (late := now - self._last - self._every) > self._every:
            self._held += late
        self._turn, self._last = turn_s, now
        turn_s -= self._held
        silent = self._missed * self._every
        if self._care.silence and silent >= self._care.silence:
            return f"the engine process has given no sign of life for {silent:.0f} s (--hang-timeout)"
        if self._care.turn and turn_s >= self._care.turn:
            return f"the engine has been in one step for {turn_s:.0f} s (--step-timeout)"
        return ""


@dataclass(slots=True)
class Restarts:
    """How long to wait before the next start: 0, 1, 2, 4 … seconds, and not at all after `most` in a row. An engine that has served for
    `WINDOW` seconds ends the row: how long starts take does not matter."""

    most: int
    begun: int = 0

    def next(self, served: float) -> float | None:
        """Seconds to wait, counted as a start, after an engine that has served for so many seconds; None: no more."""
        if served >= WINDOW:
            self.begun = 0
        if self.begun >= self.most:
            return None
        self.begun += 1
        return min(_LONGEST_WAIT, 2.0 ** (self.begun - 2)) if self.begun > 1 else 0.0


class Keeper:
    """Owns the process that serves at present. `run` until the engine has ended for good; then `stop`, in any case."""

    def __init__(
        self,
        process: EngineProcess,
        start: Callable[[], asyncio.Future[EngineProcess]],
        client: EngineClient,
        care: Care,
        observer: Observer,
        clock: Clock,
        least_build_s: float = _LEAST_BUILD,
    ) -> None:
        """`start` starts another process, which may take as long to be built as five times the first, or `least_build_s`."""
        self._process = process
        self._start = start
        self._client = client
        self._care = care
        self._observer = observer
        self._clock = clock
        self._vigil = Vigil(care)
        self._restarts = Restarts(care.restarts)
        self._serving = False
        self._since = clock.now()
        self._build_s = least_build_s

    def serves(self) -> None:
        """The first engine is ready: what ends it from now on need not end the server."""
        now = self._clock.now()
        self._build_s = max(self._build_s, _BUILDS * (now - self._since))
        self._serving, self._since = True, now
        self._client.replaceable = self._care.restart

    async def run(self) -> None:
        reason = await self._trouble()
        while self._serving and self._care.restart:
            again = await self._again(reason)
            if again is not None:
                reason = again
                break
            reason = await self._trouble()
        self._client.replaceable = False
        self._client.die(f"{reason}: start the server again")

    async def stop(self, patience: float, hurry: asyncio.Event) -> None:
        """End the process that serves at present."""
        await self._process.stop(patience, hurry)

    async def _trouble(self) -> str:
        """Wait until the engine has ended, or hangs and is to be started again; returns why."""
        ended = asyncio.create_task(self._process.ended())
        hung = ""
        try:
            while not ended.done():
                await asyncio.wait((ended,), timeout=LOOK)
                told = self._look() if self._serving and not ended.done() else ""
                if told and not hung:
                    log.error("%s", told)
                    self._observer.hung()
                    if self._care.restart:
                        return told
                if told:
                    self._client.lose(told, "engine_hung")
                elif hung and not ended.done():
                    log.warning("the engine goes on")
                    self._client.regain()
                hung = told
            return ended.result()
        finally:
            ended.cancel()

    def _look(self) -> str:
        return self._vigil.look(self._client.alive, self._client.turn_s, self._clock.now())

    async def _again(self, reason: str) -> str | None:
        """Start the engine again, as often as it may be; returns why not, if it does not serve in the end."""
        served = self._clock.now() - self._since
        while True:
            reason = self._client.last_words(reason)
            if self._client.dead is not None:  # the server is being ended meanwhile
                return reason
            wait = self._restarts.next(served)
            if wait is None:
                tried = f"started again {self._care.restarts} times, never to serve for {WINDOW / 60:.0f} minutes"
                return f"{reason} ({tried}: --max-engine-restarts)"
            self._client.lose(f"{reason}; it is being started again", "engine_restarting")
            log.error("%s: it is started again%s", reason, f" in {wait:g} s" if wait else "")
            self._client.detach()
            await self._process.stop(0.0)
            await asyncio.sleep(wait)
            began = self._clock.now()
            self._process = await self._start()
            self._client.attach(self._process.link)
            self._observer.restarted()
            ended = await self._built()
            if ended is None:
                self._vigil.begin()
                self._client.regain()
                self._since = self._clock.now()
                log.info("the engine serves again after %.1f s", self._clock.now() - began)
                return None
            reason, served = ended, 0.0

    async def _built(self) -> str | None:
        """Wait until the new engine serves; returns why not, if it never will."""
        ended, ready = asyncio.create_task(self._process.ended()), asyncio.create_task(self._client.ready())
        try:
            await asyncio.wait((ended, ready), timeout=self._build_s, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                return ended.result() if ended.done() else f"the new engine was not ready after {self._build_s:.0f} s"
            try:
                ready.result()
            except EngineDead as error:
                return str(error)
            return None
        finally:
            ended.cancel()
            ready.cancel()
