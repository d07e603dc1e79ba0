"""A lane into the device waits for what is still written behind results; one out of it for nothing. CUDA is made of paper here."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.store import streams  # noqa: E402
from stepwell.store.pieces import Spans, pieces  # noqa: E402

Told = list[tuple[Any, ...]]


class Event:
    def __init__(self, told: Told) -> None:
        self._told = told

    def record(self, stream: Any) -> None:
        self._told.append(("event", stream))


class Stream:
    cuda_stream = 7

    def __init__(self, told: Told) -> None:
        self._told = told

    def wait_event(self, event: Any) -> None:
        self._told.append(("wait", event))


class Runtime:
    """Copies by writing down that it did."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def sender(self) -> tuple[Any, str]:
        return (lambda pieces, stream: self._told.append(("copy",))), "paper"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the streams were told to do."""
    out: Told = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(out))
    monkeypatch.setattr(torch.cuda, "Event", lambda **kinds: Event(out))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(streams.Cudart, "load", lambda *names: Runtime(out))
    return out


def test_a_load_waits_for_what_is_behind_a_result_when_it_is_sent(told: Told) -> None:
    behind: list[Any] = [None]
    up, down = streams.cuda_lanes(torch.device("cpu"), lambda: behind[0])
    spans = Spans.of_rows(0, 16, np.array([1], np.int32))
    for event in (None, "drafts of step 3", "drafts of step 4"):
        behind[0] = event
        for lane in (up, down):
            lane.send(pieces(spans, spans))
    steps = [(name, *(rest if name == "wait" else ())) for name, *rest in told]
    copied = [("event",), ("copy",), ("event",)]
    assert steps == [
        *copied, *copied,
        ("wait", "drafts of step 3"), *copied, *copied,
        ("wait", "drafts of step 4"), *copied, *copied,
    ]  # fmt: skip
