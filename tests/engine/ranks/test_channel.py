"""Messages between control and a rank: whole, in order, and control never waits to send one."""

from __future__ import annotations

import threading

import pytest

from stepwell.base.errors import RankError
from stepwell.engine.ranks import channel as channels
from stepwell.engine.ranks.channel import Channel, Message, pair

LONG = bytes(range(256)) * 8000


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    here, there = pair()
    return here, Channel(there)


def received(end: Channel, count: int) -> list[Message]:
    return [message for _ in range(count) if (message := end.receive(5)) is not None]


def test_what_is_sent_arrives_in_order(ends: tuple[Channel, Channel]) -> None:
    control, rank = ends
    control.post(1, b"a step", b"its masks")
    control.post(2)
    rank.send(3, b"", b"more")
    assert received(rank, 2) == [(1, b"a step", b"its masks"), (2, b"", b"")]
    assert rank.receive(0) is None
    assert received(control, 1) == [(3, b"", b"more")]


def test_posting_does_not_wait_for_a_rank_that_does_not_read(ends: tuple[Channel, Channel]) -> None:
    control, rank = ends
    sent = [(at, LONG, bytes([at])) for at in range(3)]
    for message in sent:
        control.post(*message)
    assert control.unsent
    found: list[Message] = []
    while len(found) < len(sent):
        control.flush()
        rank.take()
        found += rank.messages()
    assert found == sent and not control.unsent


def test_threads_that_send_at_once_do_not_mix_their_messages(ends: tuple[Channel, Channel]) -> None:
    control, rank = ends
    threads = [
        threading.Thread(target=lambda at=at: [rank.send(at, LONG) for _ in range(3)], daemon=True) for at in range(2)
    ]
    for thread in threads:
        thread.start()
    found = received(control, 6)
    for thread in threads:
        thread.join()
    assert sorted(kind for kind, *_ in found) == [0, 0, 0, 1, 1, 1] and {data for _, data, _ in found} == {LONG}


def test_what_was_sent_before_an_end_is_received(ends: tuple[Channel, Channel]) -> None:
    control, rank = ends
    control.post(4, b"the last word")
    control.close()
    assert rank.receive(5) == (4, b"the last word", b"") and not rank.ended
    assert rank.receive(5) is None and rank.ended


def test_nothing_happens_where_the_other_has_gone(ends: tuple[Channel, Channel]) -> None:
    control, rank = ends
    rank.close()
    for _ in range(3):
        control.post(1, LONG)
        control.send(1, LONG)
    assert control.ended and not control.unsent


def test_a_message_without_bounds_is_refused(ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch) -> None:
    control, rank = ends
    monkeypatch.setattr(channels, "MOST", 10)
    control.post(1, b"12345", b"6789AB")
    with pytest.raises(RankError, match="a message of 11 bytes, more than 10"):
        rank.receive(5)
