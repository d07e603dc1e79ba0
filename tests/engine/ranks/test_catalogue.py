"""What can be resumed from after a restart: what the disks of all ranks have."""

from __future__ import annotations

import numpy as np

from stepwell.cache.disk.archive import Dormant
from stepwell.cache.moves import Name
from stepwell.engine.ranks.catalogue import JointCatalogue
from stepwell.engine.ranks.wire import Adopt, Drop, Filing

ROOT, OTHER = b"root", b"other"


def record(number: int, digest: bytes, root: bytes = ROOT, pages: int = 2) -> Dormant:
    return Dormant(number, "kv", Name(root, root, digest, 0, 32), pages)


def joint(*found: list[Dormant]) -> tuple[JointCatalogue, list[Filing]]:
    filed: list[Filing] = []
    return JointCatalogue(found, filed.append), filed


def test_only_what_every_rank_has_is_there_and_the_rest_is_dropped() -> None:
    a, b, c = b"a", b"b", b"c"
    catalogue, filed = joint([record(1, a), record(2, b)], [record(7, c), record(8, b), record(9, a, pages=1)])
    assert catalogue.pages == 2
    (found,) = catalogue.under(ROOT, [a, b, c])
    assert found.name.digest == b
    assert filed == [Drop([[1], [7, 9]])], "a record of other length is another"


def test_each_rank_hears_its_own_number_of_a_record() -> None:
    catalogue, filed = joint([record(1, b"a")], [record(5, b"a")])
    (found,) = catalogue.under(ROOT, [b"a"])
    slots = np.array([3, 4], np.int32)
    catalogue.adopt(found, slots)
    assert filed == [Adopt([1, 5], slots.tobytes())]
    assert not catalogue.pages and not catalogue.under(ROOT, [b"a"])


def test_the_least_recently_used_go_first() -> None:
    names = [b"a", b"b", b"c"]
    own, others = [record(i, n) for i, n in enumerate(names)], [record(10 + i, n) for i, n in enumerate(names[::-1])]
    catalogue, filed = joint(own, others)
    assert catalogue.trim_dormant(3) == 4
    assert filed == [Drop([[0, 1], [12, 11]])]
    assert [dormant.name.digest for dormant in catalogue.under(ROOT, names)] == [b"c"]
    assert catalogue.trim_dormant(99) == 2 and catalogue.trim_dormant(1) == 0 and len(filed) == 2


def test_a_salt_can_be_expelled_and_a_record_discarded() -> None:
    both = [record(0, b"a"), record(1, b"b", OTHER), record(2, b"c")]
    catalogue, filed = joint(both, both)
    assert catalogue.expel(OTHER) == 2
    catalogue.discard(catalogue.under(ROOT, [b"c"])[0])
    assert filed == [Drop([[1], [1]]), Drop([[2], [2]])]
    assert catalogue.pages == 2


def test_two_records_of_one_name_are_one() -> None:
    catalogue, filed = joint([record(0, b"a"), record(1, b"a")], [record(5, b"a")])
    assert len(catalogue.under(ROOT, [b"a"])) == 1 and catalogue.pages == 2
    assert filed == [Drop([[0], []])]


def test_empty_disks_have_nothing() -> None:
    catalogue, filed = joint([], [])
    assert not catalogue.pages and not catalogue.under(ROOT, [b"a"]) and not filed and catalogue.hold()
