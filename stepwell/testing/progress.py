"""Law 9: while anything waits, something moves; and what moves comes to an end."""

from __future__ import annotations

import random
from dataclasses import dataclass

from stepwell.base.geometry import Ints
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import SamplingParams
from stepwell.testing.laws import LawBroken

PATIENCE = 200
"""Turns without a token, a report or an answer that are too many."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the loop did.

    waits    somebody has waited for something all the time
    done     it computed, told someone something, heard of a copy, or asked the index on disk
    moving   copies are under way, or what a grammar allows next is being worked out for someone who runs
    excused  reports that never come are waited for, and may be
    """

    waits: bool
    done: bool
    moving: bool
    excused: bool


class Progress:
    """Judges one turn after the other."""

    def __init__(self) -> None:
        self._idle = 0

    def check(self, turn: Turn, loop: EngineLoop) -> None:
        """Raises LawBroken where everything stands still, or nothing has come of what moves for too long."""
        alive = turn.done or not turn.waits
        if not (alive or turn.moving):
            raise LawBroken(9, f"stuck: {loop.stats()}")
        self._idle = 0 if alive or turn.excused else self._idle + 1
        if self._idle > PATIENCE:
            raise LawBroken(9, f"{PATIENCE} steps without a token: {loop.stats()}")


class Masks:
    """Guidance that knows what may follow an answer up to `slow` turns after it was asked for the first time."""

    def __init__(self, seed: int, slow: int) -> None:
        self._chance = random.Random(f"masks {seed}")
        self._slow = slow
        self._turn = 0
        self._due: dict[tuple[str, int], int] = {}
        self.awaited = False
        """Whether anybody has been told in this turn that it is not known yet."""

    def turn(self) -> None:
        """The next turn begins."""
        self._turn += 1
        self.awaited = False

    def begin(self, request_id: str, params: SamplingParams, answer: Ints) -> None:
        self._due.setdefault((request_id, len(answer)), self._turn + self._chance.randint(0, self._slow))

    def ready(self, request_id: str, params: SamplingParams, answer: Ints) -> bool:
        self.begin(request_id, params, answer)
        known = self._due[request_id, len(answer)] <= self._turn
        self.awaited = self.awaited or not known
        return known

    def wait(self, seconds: float) -> bool:
        return self.awaited
