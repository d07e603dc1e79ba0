"""Responses that are kept: their bound, and what counts towards it."""

from __future__ import annotations

import random

import pytest

from stepwell.server.responses.kept import KeptResponses, Stored, Turn


def turn(text: str) -> Turn:
    return Turn.of([{"role": "user", "content": text}])


def test_a_conversation_is_the_turns_up_to_the_response() -> None:
    kept = KeptResponses(10_000)
    first, second = turn("a"), turn("b")
    kept.keep("me", "r1", Stored(b"1", (first,)))
    kept.keep("me", "r2", Stored(b"2", (first, second)))
    found = kept.find("me", "r2")
    assert found is not None and [m["content"] for m in found.messages] == ["a", "b"]
    assert kept.size == 2 + first.size + second.size, "what two responses share is counted once"
    assert kept.drop("me", "r1") and kept.find("me", "r1") is None
    assert kept.find("me", "r2") == found, "a response outlives the one it continues"
    kept.check()


def test_nobody_finds_what_another_one_has_stored() -> None:
    kept = KeptResponses(10_000)
    kept.keep("me", "r1", Stored(b"1", ()))
    assert kept.find("you", "r1") is None and not kept.drop("you", "r1")
    assert kept.find("me", "r1") is not None


def test_the_longest_unasked_goes_first() -> None:
    kept = KeptResponses(300)
    for name in ("r1", "r2", "r3"):
        kept.keep("me", name, Stored(b"x" * 100, ()))
    kept.find("me", "r1")
    kept.keep("me", "r4", Stored(b"x" * 100, ()))
    assert [name for name in ("r1", "r2", "r3", "r4") if kept.find("me", name) is not None] == ["r1", "r3", "r4"]


@pytest.mark.parametrize("limit", [0, 50])
def test_what_is_larger_than_the_bound_is_not_kept_and_displaces_nothing(limit: int) -> None:
    kept = KeptResponses(limit)
    if limit:
        kept.keep("me", "r0", Stored(b"x", ()))
    kept.keep("me", "r1", Stored(b"x" * 51, ()))
    assert kept.find("me", "r1") is None and len(kept) == (1 if limit else 0)


def test_the_count_is_right_whatever_comes_and_goes() -> None:
    pick = random.Random(3)
    kept = KeptResponses(3_000)
    names: list[str] = []
    for i in range(600):
        earlier = kept.find("me", pick.choice(names)) if names and pick.random() < 0.7 else None
        turns = () if earlier is None else earlier.turns
        kept.keep("me", f"r{i}", Stored(b"x" * pick.randrange(200), (*turns, turn("y" * pick.randrange(300)))))
        names.append(f"r{i}")
        if pick.random() < 0.2:
            kept.drop("me", pick.choice(names))
        kept.check()


def test_who_stores_much_displaces_nothing_of_who_stores_little() -> None:
    kept = KeptResponses(1_000)
    kept.keep("quiet", "mine", Stored(b"x" * 100, ()))
    for i in range(50):
        kept.keep("loud", f"r{i}", Stored(b"x" * 100, (turn("y" * 50),)))
        kept.check()
    assert kept.find("quiet", "mine") is not None
    assert kept.find("loud", "r49") is not None and kept.find("loud", "r0") is None


def test_an_owner_without_responses_is_forgotten() -> None:
    kept = KeptResponses(1_000)
    kept.keep("me", "r", Stored(b"x", (turn("y"),)))
    assert kept.drop("me", "r") and not len(kept) and kept.size == 0
    kept.keep("you", "r", Stored(b"x" * 2_000, ()))
    kept.check()
    assert not len(kept)
