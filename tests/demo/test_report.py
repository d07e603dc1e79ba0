from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from stepwell.demo.client import Answer
from stepwell.demo.report import Row, complaints, summarise, table
from stepwell.demo.script import Turn

COLD = Answer(text="as before", finish="length", ttft=0.4, prompt=1000, device=0, host=0, disk=0, generated=24)


def row(device: int, host: int, ttft: float = 0.1, text: str = "as before") -> Row:
    return Row(Turn(0, 0), replace(COLD, device=device, host=host, ttft=ttft, text=text), COLD)


def test_summary_adds_up_to_the_prompts() -> None:
    rows = [row(0, 0, ttft=0.4), row(600, 0), row(128, 768)]
    summary = summarise(rows)
    assert summary == {
        "turns": 3,
        "answers_right": 0,
        "answers_identical": 3,
        "cached_device": 728,
        "cached_host": 768,
        "recomputed": 1504,
        "resumed_ttft_over_cold": 0.25,
    }


def test_an_answer_is_right_if_it_holds_what_was_asked_for() -> None:
    known, unknown = (replace(row(600, 0, text=text), wanted="4817") for text in ("It is 4817.", "It is 4818."))
    assert known.right and not unknown.right and not row(600, 0).right
    assert summarise([known, unknown])["answers_right"] == 1


def test_ratio_is_absent_where_nothing_was_resumed() -> None:
    assert summarise([row(0, 0)])["resumed_ttft_over_cold"] is None


def test_success_needs_a_turn_from_host_and_equal_answers() -> None:
    assert complaints([row(600, 0), row(0, 600)]) == []
    assert complaints([row(600, 0)]) == ["no turn was served from host memory"]
    assert "turn 1" in complaints([row(0, 600, text="otherwise")])[0]


def test_same_text_of_another_length_or_end_is_not_the_same_answer() -> None:
    assert not replace(COLD, generated=23).says_the_same(COLD)
    assert not replace(COLD, finish="stop").says_the_same(COLD)


def test_cold_run_served_from_the_cache_is_reported() -> None:
    warm_cold = Row(Turn(0, 0), replace(COLD, host=64), replace(COLD, device=64))
    assert complaints([warm_cold]) == ["a cold run was served from the cache"]


def test_table_fits_a_narrow_terminal() -> None:
    console = Console(width=80, record=True, quiet=False, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table([row(1500, 3500), row(0, 600, text="otherwise")]))
    lines = captured.get().splitlines()
    assert any("1,500" in line and "3,500" in line and "yes" in line for line in lines)
    assert any("NO" in line for line in lines)
