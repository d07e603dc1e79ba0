"""Bugs planted against law 11: what is condemned is read by nobody who comes later."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.cache import clear, copies, life, publish
from stepwell.sched import admit, finish
from stepwell.testing import telltale
from tests.laws.bugs import bug


@bug(11, corrupt=20)
def what_is_condemned_stays_where_prompts_lead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clear, "_expel", lambda directory, top: None)


@bug(11, corrupt=20)
def only_the_audited_prompt_is_condemned(patch: pytest.MonkeyPatch) -> None:
    """Branches of the same beginning, which have read the same bytes, go back to where prompts lead."""
    real = clear._expel

    def narrow(directory: Any, top: Any) -> None:
        root = top.parent
        real(directory, top)
        if top.parent in directory.tree.condemned and any(node.children for node in [top]):
            directory.tree.roots.setdefault(root.salt, root).children[directory.tree.head(top)] = top

    patch.setattr(clear, "_expel", narrow)


@bug(0, 2, 3, 11, corrupt=20, seed=2)
def a_load_of_what_is_condemned_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admit, "_condemned", lambda directory, parked: False)


@bug(5, corrupt=20)
def what_is_computed_from_condemned_bytes_counts(patch: pytest.MonkeyPatch) -> None:
    real = publish.publish

    def trusting(directory: Any, *rest: Any, **more: Any) -> None:
        condemned, directory.tree.condemned = directory.tree.condemned, {}
        real(directory, *rest, **more)
        directory.tree.condemned = condemned

    patch.setattr(finish, "publish", trusting)


@bug(0, 5, corrupt=20, seed=11)
def a_copy_of_what_is_condemned_counts(patch: pytest.MonkeyPatch) -> None:
    real = copies.copy_landed

    def trusting(directory: Any, report: Any) -> bool:
        flight = directory.in_flight.get(report.ticket)
        for item in flight.items if flight is not None else ():
            item.life[item.pending.source] = life.LEAVING
        return real(directory, report)

    patch.setattr(admit, "copy_landed", trusting)


@bug(2, 3, 10, corrupt=20, seed=21)
def checksums_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = telltale.Memory.copy

    def blind(self: Any, move: Any) -> None:
        sums = self.sums[move.source.tier].copy() if move.source.tier in self.sums else None
        if sums is not None:
            self.sums[move.source.tier] = telltale._sums(self.arenas[move.source.tier])
        real(self, move)

    patch.setattr(telltale.Memory, "copy", blind)
