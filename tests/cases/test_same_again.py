"""The same work again, and again otherwise: after any number of resumes, in any mode, every answer stays the cold one.

That each answer is the cold one is a law of the harness; here the runs are arranged in which it has been broken elsewhere.
"""

from __future__ import annotations

import pytest

from stepwell.cache.moves import Tier
from stepwell.testing.harness import Harness
from tests.cache.builders import join, numbers
from tests.cases.serving import ask, engine, history, outcome, rules, served, submit

GRID = 8


def _engine(budget: int = 64, seqs: int = 4, ahead: bool = False) -> Harness:
    return engine(rules(400, 800, grid=GRID, image=2, interval=32), budget=budget, seqs=seqs, ahead=ahead)


def _flush(harness: Harness, tier: Tier) -> None:
    if tier is Tier.HOST:
        harness.flush(Tier.DEVICE, demote_first=True)


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
def test_one_prompt_five_times_gives_five_equal_answers_and_is_remembered(tier: Tier) -> None:
    harness, prompt = _engine(), numbers(77, 1)
    for count in range(5):
        _flush(harness, tier)
        assert ask(harness, f"{count}", prompt, 20).boundary == (72 if count else 0)
    assert len({tuple(harness.told[f"{count}"].tokens) for count in range(5)}) == 1
    _flush(harness, tier)
    how = ask(harness, "next turn", join(history(harness, "4"), numbers(9, 2)), 20)
    assert how.boundary > 77, "the turn before is known, answer included"
    served(harness, "next turn")


@pytest.mark.parametrize("budget", [16, 64, 400])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_second_pass_over_all_prompts_hits_and_answers_as_the_first(budget: int, together: bool, ahead: bool) -> None:
    """Alone or in company, prefills whole or in pieces, each step after the last or while that still computes."""
    harness = _engine(budget, ahead=ahead)
    prompts = [join(numbers(40, 1), numbers(length, length)) for length in (3, 17, 41, 64)]
    for turn in ("first", "second"):
        for number, prompt in enumerate(prompts):
            submit(harness, f"{turn} {number}", prompt, 12)
            while harness.loop.busy and not together:
                harness.step()
        while harness.loop.busy:
            harness.step()
    for number, prompt in enumerate(prompts):
        assert harness.told[f"first {number}"].tokens == harness.told[f"second {number}"].tokens
        assert outcome(harness, f"second {number}").boundary == (len(prompt) - 1) // GRID * GRID
    harness.drain()


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
def test_many_questions_after_one_long_beginning(tier: Tier) -> None:
    """Instructions of several intervals, then something else each time. Nobody is answered as another was."""
    harness, stem = _engine(), numbers(4 * 32 + 5, 1)
    ask(harness, "first", join(stem, numbers(10, 50)), 12)
    for number in range(10):
        _flush(harness, tier)
        how = ask(harness, f"{number}", join(stem, numbers(10 + number, 100 + number)), 12)
        assert how.boundary >= 4 * 32
        served(harness, f"{number}")
    assert len({tuple(told.tokens) for told in harness.told.values()}) == 11


@pytest.mark.parametrize("budget", [8, 24, 200])
def test_documents_one_after_another_in_one_live_slot_leave_no_trace(budget: int) -> None:
    """The only slot serves twenty strangers, its state spoilt in between as if by a fault."""
    harness = engine(rules(60, 60, grid=GRID), budget=budget, seqs=1)
    for number in range(20):
        assert ask(harness, f"{number}", numbers(20 + 3 * number, number), 5).cached == 0
        harness.memory.live[:] = 0x7F7F7F7F7F7F7F7F
    served(harness, *(f"{number}" for number in range(20)))


def test_rows_of_a_step_close_up_as_requests_end_and_keep_to_their_own_state() -> None:
    """Twelve answers of twelve lengths begin one after the other in five slots: in every step the rows stand elsewhere."""
    harness = engine(rules(200, 0, grid=GRID), seqs=5)
    for number in range(12):
        submit(harness, f"{number}", numbers(9 + 5 * number, number), 3 + 7 * number % 17)
        harness.step()
    harness.drain()
    served(harness, *harness.told)


def test_two_continuations_of_one_prompt_never_use_each_others_states() -> None:
    harness, stem = _engine(), numbers(61, 1)
    one, other = join(stem, numbers(40, 2)), join(stem, numbers(40, 3))
    found = []
    for turn, prompt in enumerate((one, other, one, other)):
        found.append(ask(harness, f"{turn}", prompt, 30).boundary)
    assert found[0] == 0 and found[1] <= 61 and found[2:] == [96, 96]


@pytest.mark.parametrize("same_turn", [False, True])
def test_pages_that_change_hands_within_a_turn_are_read_by_one_and_written_by_the_other_in_order(
    same_turn: bool,
) -> None:
    """What a request gives back on its end or its preemption becomes, at once, the target of another's load."""
    harness = engine(rules(30, 60, clean=0.0), seqs=2)
    ask(harness, "first", numbers(49, 1), 1)
    harness.flush(Tier.DEVICE, demote_first=True)
    submit(harness, "old", numbers(60, 2), 16)
    for _ in range(8):
        harness.step()
    old = harness.loop.queues.find_running("old")
    assert old is not None
    had = set(old.table.pages.tolist())
    if same_turn:
        harness.abort("old")
    else:
        harness.preempt("old")
        harness.abort("old")
        harness.flush(Tier.DEVICE)
    submit(harness, "loading", numbers(49, 1), 8)
    submit(harness, "beside", numbers(20, 3), 8)
    written: set[int] = set()
    while harness.loop.busy:
        harness.step()
        for parked in harness.loop.queues.parked.values():
            written |= set(parked.loading.held.table.pages.tolist())
    assert written & had, "the load was given pages that another had just used"
    served(harness, "loading", "beside")
    harness.drain()
