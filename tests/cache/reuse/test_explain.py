"""The answer to "what would this prompt get?"."""

from __future__ import annotations

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.admission import Runnable, commit
from stepwell.cache.reuse.explain import Explanation, PlannedStart, explain
from stepwell.cache.reuse.outcome import Loss, Reason
from tests.cache.builders import COSTS, copy_down, directory, forget, hold, join, keep, numbers, planned, state_of

PROMPT = numbers(48)


def explained(shelf: Directory, prompt: Ints, salt: str = "", read: bool = True) -> Explanation:
    return explain(shelf, salt, prompt, shelf.plan(salt, prompt, COSTS, read))


def test_nothing_is_known_of_a_new_prompt() -> None:
    shelf = directory()
    told = explained(shelf, PROMPT)
    assert (told.matched, told.device, told.union, told.hit, told.rungs) == (0, 0, 0, 0, ())
    assert told.starts == (PlannedStart(0, 0, None, ()),) and told.pages_needed == 12
    assert told.outcome is not None and told.outcome.lost == ((Loss.NEW, 48),)


def test_a_load_is_told_with_its_legs_and_its_fallbacks() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, 20, (40,))
    told = explained(shelf, PROMPT)
    assert (told.matched, told.device, told.union, told.hit) == (40, 20, 40, 20)
    assert told.rungs == ((20, "device"), (40, "host"))
    assert told.starts[0] == PlannedStart(40, 20, "host", (("host", 20, 40),))
    assert [start.boundary for start in told.starts] == [40, 20, 0]
    assert told.outcome is not None
    assert (told.outcome.device, told.outcome.host, told.outcome.recomputed) == (20, 20, 8)


def test_it_is_what_an_admission_then_does_and_asking_changes_nothing() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    asked = join(PROMPT[:30], numbers(20, 1))
    before = state_of(shelf)
    told = explained(shelf, asked)
    assert state_of(shelf) == before
    ready = commit(shelf, planned(shelf, asked), "", asked, 0, 0.0)
    assert isinstance(ready, Runnable) and ready.outcome == told.outcome
    assert told.diverged_at == 30 and ready.boundary == 20


def test_a_request_that_would_wait_is_told_how_much_is_missing() -> None:
    shelf = directory(pages=10)
    hold(shelf, 6)
    told = explained(shelf, numbers(40))
    assert told.starts == () and told.outcome is None
    assert (told.pages_needed, told.pages_available) == (10, 4)


def test_reading_may_be_left_out() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    told: Explanation = explained(shelf, PROMPT, read=False)
    assert told.outcome is not None and told.outcome.reason == Reason.NOT_READ and told.outcome.boundary == 0


def test_other_salts_are_not_seen() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,), salt="theirs")
    assert explained(shelf, np.asarray(PROMPT), "mine").matched == 0
