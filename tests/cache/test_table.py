"""A request's pages: which it shares, which are its own."""

from __future__ import annotations

import numpy as np

from stepwell.cache.slots import BlockTable


def pages(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_what_it_starts_with_is_shared_and_what_is_added_is_private() -> None:
    table = BlockTable(pages(5, 6))
    table.append(pages(9, 1))
    assert table.pages.tolist() == [5, 6, 9, 1] and table.private.tolist() == [9, 1]
    assert len(table) == 4
    assert table.is_private(2, 4) and not table.is_private(1, 3)


def test_it_grows_without_losing_anything() -> None:
    table = BlockTable(pages(0))
    for page in range(1, 200):
        table.append(pages(page))
    assert table.pages.tolist() == list(range(200)) and table.private.tolist() == list(range(1, 200))


def test_it_can_start_large() -> None:
    table = BlockTable(np.arange(100, dtype=np.int32))
    table.append(np.arange(100, 400, dtype=np.int32))
    assert len(table) == 400 and len(table.private) == 300


def test_sharing_gives_back_private_pages_that_others_replace() -> None:
    table = BlockTable(pages(5))
    table.append(pages(7, 8, 9))
    assert table.share(1, pages(7, 3)).tolist() == [8], "7 is the tree's now, 8 has been replaced"
    assert table.pages.tolist() == [5, 7, 3, 9] and table.private.tolist() == [9]


def test_sharing_what_is_shared_already_gives_nothing_back() -> None:
    table = BlockTable(pages(5, 6))
    assert table.share(0, pages(5, 6)).tolist() == []
    assert table.share(0, pages(1, 2)).tolist() == [], "shared pages are not this table's to give"


def test_the_start_is_copied() -> None:
    shared = pages(5, 6)
    table = BlockTable(shared)
    shared[0] = 99
    assert table.pages.tolist() == [5, 6]


def test_what_was_handed_out_never_changes() -> None:
    table = BlockTable(pages(5))
    table.append(pages(7, 8, 9))
    before = table.pages
    table.share(1, pages(7, 3))
    table.append(pages(*range(20, 60)))
    assert before.tolist() == [5, 7, 8, 9]


def test_retired_pages_stay_private_until_they_are_taken() -> None:
    table = BlockTable(pages(5))
    table.append(pages(7, 8))
    table.retire(table.share(1, pages(1, 2)))
    assert table.has_retired and sorted(table.private.tolist()) == [7, 8]
    assert table.take_retired().tolist() == [7, 8] and not table.has_retired
    assert table.private.tolist() == [] and table.take_retired().tolist() == []


def test_a_step_is_told_from_which_page_on_the_table_is_new_to_it() -> None:
    table = BlockTable(pages(5, 6))
    assert table.name()[1] == 0
    table.append(pages(7, 8))
    assert table.name()[1] == 2
    assert table.name()[1] == 4, "nothing is new"
    table.share(2, pages(7, 1))
    assert table.name()[1] == 3
    table.share(2, pages(7, 1))
    assert table.name()[1] == 4


def test_what_follows_a_detached_end_is_new_to_a_step() -> None:
    table = BlockTable(pages(5, 6))
    table.append(pages(7, 8))
    table.name()
    table.detach(2, 3)
    table.append(pages(9))
    pages_now, known = table.name()
    assert (pages_now.tolist(), known) == ([5, 6, 9], 2)
