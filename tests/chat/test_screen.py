"""An answer on the screen: blocks of Markdown, and text that tries to command the terminal."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stepwell.chat.screen import AnswerScreen, finished, meter
from stepwell.chat.talkers import Piece, harmless

ANSWER = "# Title\n\nSome *words*.\n\n```\na\n\nb\n```\n\n1. one\n\n2. two\n\nThe end."


def drawn(pieces: list[str], terminal: bool, height: int = 100) -> str:
    out = io.StringIO()
    with AnswerScreen(Console(file=out, width=60, height=height, force_terminal=terminal)) as screen:
        for piece in pieces:
            screen.show(Piece(piece))
    assert screen.text == harmless("".join(pieces))
    return out.getvalue()


def test_markdown_is_drawn_in_a_terminal_and_left_alone_in_a_pipe() -> None:
    assert drawn([ANSWER], terminal=False).strip() == ANSWER
    shown = drawn(list(ANSWER), terminal=True)
    assert "```" not in shown and "*words*" not in shown and "The end." in shown


def test_a_block_is_finished_when_another_begins() -> None:
    assert finished("one") == 0 and finished("one\n\n") == 0
    assert finished("one\n\ntwo") == len("one\n\n")
    assert finished("```\na\n\nb\n") == 0, "a fence is open"
    assert finished("- a\n\n- b\n") == 0, "a list may go on"


@given(
    st.lists(st.sampled_from(["word ", "\n", "\n\n", "```\n", "- item", "1. ", "# ", "> "]), max_size=30),
    st.integers(0, 60),
)
def test_what_is_finished_stays_so_whatever_follows(parts: list[str], cut: int) -> None:
    text = "".join(parts)
    assert finished(text[:cut]) <= finished(text)


def test_text_cannot_command_the_terminal() -> None:
    evil = "a\x1b[2Jb\x07c\x9b31md\re\n\tf"
    assert harmless(evil) == "a[2Jbc31mde\n\tf"
    for terminal in (False, True):
        assert "\x1b[2J" not in drawn([evil], terminal)


def test_an_answer_longer_than_the_screen_is_shown_whole() -> None:
    lines = [f"line {i}\n\n" for i in range(60)]
    shown = drawn(lines, terminal=True, height=10)
    assert all(f"line {i}" in shown for i in range(60))


def test_the_meter_is_full_at_the_end_of_the_context() -> None:
    assert meter(0, 100) == "" and meter(5, None) == "context 5 tokens"
    assert meter(100, 100).startswith("context " + "█" * 12 + " 100%") and "░" * 12 in meter(1, 100)
