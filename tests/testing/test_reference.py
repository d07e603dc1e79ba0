"""The reference cache remembers exactly what it was told, salt by salt."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.testing.reference import Reference


def _tokens(*values: int) -> Ints:
    return np.array(values, np.int32)


def test_nothing_is_known_at_first() -> None:
    reference = Reference(2)
    assert reference.reach("", _tokens(1, 2, 3)) == 0
    assert reference.boundaries("", _tokens(1, 2, 3)) == [0]


def test_a_boundary_needs_kv_and_a_rung() -> None:
    reference = Reference(2)
    reference.computed("", _tokens(1, 2, 3, 4, 5), rungs=[2])
    assert reference.reach("", _tokens(1, 2, 3, 4, 5, 6)) == 4
    assert reference.boundaries("", _tokens(1, 2, 3, 4, 5, 6)) == [0, 2]


def test_a_fork_shares_whole_blocks_alone() -> None:
    reference = Reference(2)
    reference.computed("", _tokens(1, 2, 3, 4), rungs=[2, 4])
    assert reference.boundaries("", _tokens(1, 2, 3, 9, 9)) == [0, 2]


def test_the_last_token_is_never_cached() -> None:
    reference = Reference(2)
    reference.computed("", _tokens(1, 2, 3, 4), rungs=[2, 4])
    assert reference.boundaries("", _tokens(1, 2, 3, 4)) == [0, 2]
    assert reference.boundaries("", _tokens(1, 2, 3, 4, 5)) == [0, 2, 4]


def test_salts_share_nothing() -> None:
    reference = Reference(2)
    reference.computed("a", _tokens(1, 2, 3), rungs=[2])
    assert reference.boundaries("b", _tokens(1, 2, 3)) == [0]


@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_rung_stands_at_the_end_of_a_known_block(position: int) -> None:
    with pytest.raises(ValueError, match="not the end"):
        Reference(2).computed("", _tokens(1, 2, 3, 4, 5), rungs=[position])
