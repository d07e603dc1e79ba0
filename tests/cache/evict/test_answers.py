"""Learning whether answers come back as they were given."""

from __future__ import annotations

from stepwell.cache.directory import Directory
from stepwell.cache.evict.policy import AnswerReuse
from stepwell.cache.life import REFUSED
from stepwell.cache.moves import Tier
from stepwell.cache.tree import RungKind
from tests.cache.builders import directory, join, keep, numbers, rung_at


def test_nobody_is_judged_by_a_few_turns() -> None:
    answers = AnswerReuse()
    for _ in range(8):
        answers.saw(repeated=False)
    assert not answers.in_vain


def test_those_who_never_repeat_an_answer_are_found_out_and_forgiven() -> None:
    answers = AnswerReuse()
    for _ in range(60):
        answers.saw(repeated=False)
    assert answers.in_vain
    for _ in range(5):
        answers.saw(repeated=True)
    assert not answers.in_vain


def test_one_answer_in_five_is_enough() -> None:
    answers = AnswerReuse()
    for turn in range(200):
        answers.saw(repeated=turn % 5 == 0)
        assert not answers.in_vain


def conversation(shelf: Directory, seed: int, repeats: bool) -> None:
    prompt = numbers(16, seed)
    answered = join(prompt, numbers(8, seed + 1000))
    keep(shelf, prompt, 16, rungs=(16,))
    keep(shelf, answered, 24, rungs=(24,), kind=RungKind.ROLLING)
    keep(shelf, join(answered if repeats else prompt, numbers(16, seed + 2000)), rungs=())
    longer = join(answered if repeats else prompt, numbers(16, seed + 2000))
    keep(shelf, longer, len(longer), rungs=(len(longer),))


def test_a_directory_learns_from_its_turns() -> None:
    shelf = directory(pages=2000, host=2000)
    for seed in range(60):
        conversation(shelf, seed, repeats=False)
    assert shelf.answers.in_vain
    prompt = numbers(24, 9999)
    keep(shelf, prompt, 24, rungs=(24,), kind=RungKind.ROLLING)
    rung = rung_at(shelf, prompt, 24)
    assert rung.superseded and rung.image.life[Tier.HOST] == REFUSED, "first to go, and not worth a copy"


def test_answers_that_come_back_are_kept() -> None:
    shelf = directory(pages=2000, host=2000)
    for seed in range(60):
        conversation(shelf, seed, repeats=True)
    assert not shelf.answers.in_vain


def test_an_answer_is_left_out_once_however_many_rungs_the_next_turns_leave() -> None:
    shelf = directory()
    prompt = numbers(16)
    keep(shelf, prompt, 16, rungs=(16,))
    keep(shelf, join(prompt, numbers(8, 1)), 24, rungs=(24,), kind=RungKind.ROLLING)
    keep(shelf, join(prompt, numbers(32, 2)), 48, rungs=(32, 40, 48))
    once = AnswerReuse()
    once.saw(repeated=False)
    assert shelf.answers == once
