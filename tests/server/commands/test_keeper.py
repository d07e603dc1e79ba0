"""When an engine hangs, and how often it is started again."""

from __future__ import annotations

from stepwell.server.commands.keeper import WINDOW, Restarts, Vigil
from stepwell.server.commands.options import Care


def test_signs_of_life_keep_an_engine_well_whatever_a_step_takes() -> None:
    vigil = Vigil(Care(silence=10, turn=300))
    assert not any(vigil.look(signs, turn_s=float(signs)) for signs in range(299))


def test_silence_is_a_hang_and_a_sign_ends_it() -> None:
    vigil = Vigil(Care(silence=3, turn=300))
    told = [bool(vigil.look(7, 0.0)) for _ in range(5)]
    assert told == [False, False, False, True, True]
    assert not vigil.look(8, 0.0)


def test_a_step_without_end_is_a_hang_though_the_process_lives() -> None:
    vigil = Vigil(Care(silence=10, turn=300))
    assert "one step for 301 s" in vigil.look(1, 301.0)


def test_zero_switches_either_off() -> None:
    vigil = Vigil(Care(silence=0, turn=0))
    assert not any(vigil.look(1, 1e9) for _ in range(100))


def test_a_new_engine_begins_afresh() -> None:
    vigil = Vigil(Care(silence=2))
    assert vigil.look(1, 0.0) == vigil.look(1, 0.0) == ""
    vigil.begin()
    assert vigil.look(1, 0.0) == ""


def test_restarts_wait_longer_each_time_and_end() -> None:
    restarts = Restarts(5)
    assert [restarts.next(served=150.0) for _ in range(6)] == [0.0, 1.0, 2.0, 4.0, 8.0, None]


def test_an_engine_that_has_served_for_long_ends_the_row() -> None:
    restarts = Restarts(2)
    assert [restarts.next(served) for served in (0.0, 0.0, WINDOW, 0.0, 0.0)] == [0.0, 1.0, 0.0, 1.0, None]
