"""What two passes show."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from stepwell.eval.report import Marks, Matched, identical, matched_table, pass_table, stderr
from stepwell.eval.subject import Answer, Sources
from stepwell.eval.task import Question

QUESTIONS = [Question("p", " g", number) for number in ("5", "6", "7", "8")]


def answer(text: str, *, truncated: bool = False, failed: bool = False) -> Answer:
    return Answer(text, tuple(text), truncated, Sources(100, 10, 20, 30), loaded=True, failed=failed)


def test_answers_are_marked_by_both_ways_of_reading() -> None:
    said = [
        answer(" #### 5\n\nmore", truncated=True),
        answer(" it is 6"),
        answer("\n\n"),
        answer(" 1", truncated=True, failed=True),
    ]
    marks = Marks.of(QUESTIONS, said)
    assert marks.strict == (True, False, False, False)
    assert marks.flexible == (True, True, False, False)
    assert (marks.empty, marks.truncated, marks.loads, marks.failed) == (1, 1, 4, 1)
    assert marks.sources == Sources(400, 40, 80, 120)
    figures = marks.figures()
    assert figures["strict"] == 0.25 and figures["flexible"] == 0.5
    assert figures["tokens"] == {"prompt": 400, "device": 40, "host": 80, "disk": 120}


def test_the_standard_error_is_that_of_a_mean() -> None:
    assert stderr([True, False, True, False]) == pytest.approx((0.25 / 3) ** 0.5)
    assert stderr([True]) == 0.0


def test_flips_are_counted_each_way() -> None:
    matched = Matched.of([True, True, False, False, True], [True, False, True, False, False])
    assert (matched.both, matched.only_first, matched.only_second, matched.neither) == (1, 2, 1, 1)
    assert matched.flips == 3
    assert matched.chance() == 1.0


def test_an_uneven_split_of_flips_is_unlikely() -> None:
    assert Matched(0, 10, 0, 0).chance() == pytest.approx(2 / 2**10)
    assert Matched(4, 0, 0, 4).chance() == 1.0


def test_answers_are_the_same_only_token_by_token() -> None:
    first = [answer("one"), answer("two")]
    assert identical(first, [answer("one"), answer("twe")]) == 1


def test_tables_can_be_shown() -> None:
    marks = Marks.of(QUESTIONS, [answer(" #### 5")] * 4)
    out = StringIO()
    console = Console(file=out, width=80)
    console.print(pass_table([marks, marks]), matched_table(Matched(1, 2, 3, 4)))
    assert "25.0 ± 25.0 %" in out.getvalue()
