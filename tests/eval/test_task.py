"""Prompts of the task, and how answers are read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stepwell.base.errors import ConfigError
from stepwell.eval.task import (
    SHOTS,
    TEST,
    Form,
    Problem,
    ended,
    flexible,
    read_problems,
    strict,
    write_questions,
)

POOL = [Problem(f"What is {n} + 1?", f"It is <<{n}+1={n + 1}>>{n + 1}.\n#### {n + 1}") for n in range(30)]
SOLVED = [Problem(f"What is {n} + 2?", f"It is {n + 2}.\n#### {n + 2}") for n in range(5)]


def test_the_published_questions_are_all_there() -> None:
    problems = read_problems(TEST)
    assert len(problems) == 1319 and all(p.number.lstrip("-").replace(".", "").isdigit() for p in problems)
    assert len(read_problems(SHOTS)) == 12
    assert not {p.question for p in problems} & {p.question for p in read_problems(SHOTS)}


def test_prompts_share_their_shots_and_have_contexts_of_their_own() -> None:
    asked = write_questions(Form(questions=10, shots=4, contexts=3), POOL, SOLVED)
    shared = "".join(p.text() for p in SOLVED[:4])
    assert all(q.prompt.startswith(shared) for q in asked)
    assert len({q.prompt for q in asked}) == 10
    for n, question in enumerate(asked):
        assert question.prompt.endswith(f"Question: What is {n} + 1?\nAnswer:")
        assert question.prompt.count("Question:") == 8 and question.prompt.count(f"What is {n} + 1?") == 1
        assert question.gold == f" It is {n + 1}.\n#### {n + 1}" and question.number == str(n + 1)
    assert asked == write_questions(Form(questions=10, shots=4, contexts=3), POOL, SOLVED)


def test_an_open_book_holds_the_question_itself() -> None:
    for n, question in enumerate(write_questions(Form(10, 2, 3, open_book=True), POOL, SOLVED)):
        assert question.prompt.count(f"What is {n} + 1?\nAnswer: It is {n + 1}.") == 1
        assert question.prompt.count("Question:") == 6


def test_marks_of_the_calculator_stay_where_they_are_wanted() -> None:
    kept, dropped = (write_questions(Form(1, 0, 1, marks=marks), POOL, SOLVED)[0].prompt for marks in (True, False))
    assert "<<" in kept and "<<" not in dropped


@pytest.mark.parametrize(
    ("text", "by_strict", "by_flexible"),
    [
        ("It is 1,234.\n#### 1,234", "1234", "1234"),
        ("#### 5\n#### 6", "5", "6"),
        ("So $18.50 is left.", None, "18.50"),
        ("the answer is 7.", None, "7"),
        ("minus: -3", None, "-3"),
        ("#### 12.", "12", "12"),
        ("nothing at all", None, None),
    ],
)
def test_numbers_are_read_as_the_public_harness_reads_them(
    text: str, by_strict: str | None, by_flexible: str | None
) -> None:
    assert (strict(text), flexible(text)) == (by_strict, by_flexible)


def test_an_answer_ends_where_the_next_question_begins() -> None:
    assert ended(" It is 5.\n#### 5\n\nQuestion: What") == " It is 5.\n#### 5"
    assert ended(" 5 Question: What") == " 5 "
    assert ended(" 5") == " 5"


@pytest.mark.parametrize("content", [b"no json", b'{"question": "?"}', b"[1]", b"\xff\xfe"])
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"data\.jsonl"):
        read_problems(file)


def test_files_may_be_gzipped(tmp_path: Path) -> None:
    line = json.dumps({"question": "q", "answer": "#### 1"}).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line))
    (tmp_path / "b.jsonl").write_bytes(line)
    assert read_problems(tmp_path / "a.jsonl.gz") == read_problems(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl.gz").write_bytes(line)
    with pytest.raises(ConfigError, match=r"c\.jsonl\.gz"):
        read_problems(tmp_path / "c.jsonl.gz")


@pytest.mark.parametrize("form", [Form(31, 0, 0), Form(1, 6, 0), Form(1, 0, 30)])
def test_more_than_there_is_cannot_be_asked(form: Form) -> None:
    with pytest.raises(ConfigError, match="ask for fewer"):
        write_questions(form, POOL, SOLVED)
