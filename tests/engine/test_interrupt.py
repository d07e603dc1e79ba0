"""Ctrl-C at any moment leaves whole steps behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from stepwell.engine.interrupt import whole


@pytest.fixture(autouse=True)
def python_s_own_handler() -> Iterator[None]:
    """A shell lets what it starts in the background ignore Ctrl-C, and Python keeps to that."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.SIG_DFL if old is None else old)  # None: not set by Python


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_block_is_finished_first() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), whole():
        press()
        done.append("the rest of the block")
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_can_be_left_where_it_says_so() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), whole() as may_leave:
        may_leave()
        press()
        done.append("the rest of a step")
        may_leave()
        done.append("the next step")
    assert done == ["the rest of a step"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_it_nothing_happens() -> None:
    with whole():
        pass
    with pytest.raises(ValueError, match="its own"), whole():
        raise ValueError("an error of its own")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    old = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with whole():
            press()
            assert heard, "at once, and by whoever wanted to"
    finally:
        signal.signal(signal.SIGINT, old)


def test_other_threads_have_no_signals() -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with whole():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed
