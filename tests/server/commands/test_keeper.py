"""When an engine hangs, and how often it is started again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from stepwell.base.clock import WallClock
from stepwell.server.commands.keeper import WINDOW, Keeper, Restarts, Vigil
from stepwell.server.commands.options import Care
from stepwell.server.observe.metrics import Metrics


def test_signs_of_life_keep_an_engine_well_whatever_a_step_takes() -> None:
    vigil = Vigil(Care(silence=10, turn=300))
    assert not any(vigil.look(signs, float(signs), float(signs)) for signs in range(299))


def test_silence_is_a_hang_and_a_sign_ends_it() -> None:
    vigil = Vigil(Care(silence=3, turn=300))
    told = [bool(vigil.look(7, 0.0, float(now))) for now in range(5)]
    assert told == [False, False, False, True, True]
    assert not vigil.look(8, 0.0, 5.0)


def test_a_step_without_end_is_a_hang_though_the_process_lives() -> None:
    vigil = Vigil(Care(silence=10, turn=300))
    assert "one step for 301 s" in vigil.look(1, 301.0, 1.0)


def test_zero_switches_either_off() -> None:
    vigil = Vigil(Care(silence=0, turn=0))
    assert not any(vigil.look(1, 1e9, float(now)) for now in range(100))


def test_a_new_engine_begins_afresh() -> None:
    vigil = Vigil(Care(silence=2))
    assert vigil.look(1, 0.0, 1.0) == vigil.look(1, 0.0, 2.0) == ""
    vigil.begin()
    assert vigil.look(1, 0.0, 3.0) == ""


def test_time_in_which_both_processes_were_stopped_is_no_hang_and_a_hang_behind_it_is_one() -> None:
    vigil = Vigil(Care(silence=10, turn=300))
    assert not vigil.look(1, 0.2, 1.0)
    assert not vigil.look(2, 0.3, 501.0), "both were stopped for 499 s; the sign is from before"
    assert not vigil.look(3, 500.8, 502.0)
    assert not vigil.look(4, 0.1, 503.0), "the step has ended"
    told = [vigil.look(5 + i, 0.1 + i, 504.0 + i) for i in range(301)]
    assert not any(told[:300]) and "one step for 300 s" in told[300]


class Never:
    """A process that is being built for ever."""

    link = None

    async def ended(self) -> str:
        return await asyncio.get_running_loop().create_future()

    async def stop(self, patience: float) -> None:
        """Nothing is left behind."""


class Lost:
    """The front end's view of an engine that has gone."""

    dead = None
    alive = 0
    turn_s = 0.0

    def __init__(self) -> None:
        self.told: list[str] = []

    def last_words(self, reason: str) -> str:
        return reason

    def lose(self, reason: str, code: str) -> None:
        self.told.append(reason)

    def die(self, reason: str) -> None:
        self.told.append(reason)

    def detach(self) -> None:
        """Its link is closed with the process."""

    def attach(self, link: object) -> None:
        """Another one."""

    async def ready(self) -> None:
        await asyncio.get_running_loop().create_future()


class Ended(Never):
    async def ended(self) -> str:
        return "the engine process was killed by signal 9"


def test_a_restarted_engine_that_is_never_built_is_given_up() -> None:
    async def run() -> list[str]:
        async def another() -> Any:
            return Never()

        client: Any = Lost()
        keeper = Keeper(
            cast(Any, Ended()),
            lambda: asyncio.ensure_future(another()),
            client,
            Care(restart=True, restarts=1),
            Metrics(),
            WallClock(),
            least_build_s=0.05,
        )
        keeper.serves()
        await asyncio.wait_for(keeper.run(), 60)
        return client.told

    first, *_, last = asyncio.run(run())
    assert first == "the engine process was killed by signal 9; it is being started again"
    assert last.startswith("the new engine was not ready after 0 s (started again 1 times")


def test_restarts_wait_longer_each_time_and_end() -> None:
    restarts = Restarts(5)
    assert [restarts.next(served=150.0) for _ in range(6)] == [0.0, 1.0, 2.0, 4.0, 8.0, None]


def test_an_engine_that_has_served_for_long_ends_the_row() -> None:
    restarts = Restarts(2)
    assert [restarts.next(served) for served in (0.0, 0.0, WINDOW, 0.0, 0.0)] == [0.0, 1.0, 0.0, 1.0, None]
