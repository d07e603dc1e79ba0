"""Who is asked for at an external store, and who is planned without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepwell.sched import probe as room
from stepwell.sched.config import SchedConfig
from stepwell.sched.probe import AHEAD, probe


class Store:
    """Never answers."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def look_up(self, query: Any) -> None:
        self.asked.append(query)

    def answers(self) -> tuple[()]:
        return ()

    def release(self, number: int) -> None:
        raise AssertionError("nothing is given up here")


def waiting(tokens: int, following: object = None) -> Any:
    request = SimpleNamespace(salt="", read_cache=True)
    view = SimpleNamespace(view=np.arange(tokens, dtype=np.int32))
    job = type("Job", (), {})()
    job.request, job.tokens, job.given_up = request, view, None
    return SimpleNamespace(job=job, suspended=None, following=following)


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Any:
    query = SimpleNamespace(number=1)
    monkeypatch.setattr(room, "question", lambda *_: (query, SimpleNamespace()))
    external = SimpleNamespace(least=64, number=lambda: 1, is_distrusted=lambda *_: False)
    return SimpleNamespace(external=external, is_distrusted=lambda *_: False)


def queues(*waits: Any, slots: int = 2) -> Any:
    return SimpleNamespace(waiting=list(waits), slots=list(range(slots)), external_hits={}, probing={})


def test_followers_with_offers_keep_nobody_from_being_asked_for(directory: Any) -> None:
    followers = [waiting(200, following=object()) for _ in range(AHEAD + 5)]
    other, store = waiting(200), Store()
    state = queues(*followers, other)
    state.external_hits = {one.job: SimpleNamespace(until=1e9) for one in followers}
    probe(state, directory, SchedConfig(), store, 0.0)  # type: ignore[arg-type]
    assert len(store.asked) == 1 and other.job in state.probing


def test_a_request_that_has_nothing_to_ask_is_planned_however_many_wait_for_answers(directory: Any) -> None:
    store, short = Store(), waiting(30)
    state = queues(*(waiting(200) for _ in range(AHEAD + 5)), short)
    probe(state, directory, SchedConfig(), store, 0.0)  # type: ignore[arg-type]
    assert len(store.asked) == AHEAD + 2, "as many as there are free slots, and eight"
    assert state.external_hits == {short.job: None}
