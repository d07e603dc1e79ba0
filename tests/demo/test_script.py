from __future__ import annotations

from stepwell.demo.script import Turn, speaking_order, write_scripts


def test_scripts_are_the_same_every_time() -> None:
    assert write_scripts(2, 3) == write_scripts(2, 3)


def test_conversations_share_the_system_prompt_and_nothing_else() -> None:
    scripts = write_scripts(3, 2)
    assert len({script.system for script in scripts}) == 1
    said = [text for script in scripts for text in script.said]
    assert len(set(said)) == len(said) == 6


def test_every_turn_is_asked_once_and_in_its_order() -> None:
    order = list(speaking_order(3, 3))
    assert sorted(order, key=lambda turn: (turn.conversation, turn.turn)) == [
        Turn(c, t) for c in range(3) for t in range(3)
    ]
    for conversation in range(3):
        assert [turn.turn for turn in order if turn.conversation == conversation] == [0, 1, 2]


def test_who_spoke_last_speaks_first_in_the_next_round() -> None:
    order = list(speaking_order(3, 2))
    assert order[2].conversation == order[3].conversation == 2


def test_what_is_asked_for_has_been_told_once() -> None:
    for script in write_scripts(3, 4):
        for text, wanted in zip(script.said, script.wanted, strict=True):
            asked = text.rsplit("What is the code of the ", 1)[1].removesuffix("?")
            assert text.count(f"The code of the {asked} is {wanted}.") == 1
        whole = " ".join([script.system, *script.said])
        told = [part.split(" is ")[0] for part in whole.split("The code of the ")[1:]]
        assert len(set(told)) == len(told) == 12 + 4 * 24
