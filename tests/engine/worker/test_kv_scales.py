"""Whose turn it is to calibrate: with several ranks all of them compute, or none does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.engine.worker.kv_scales import Naming, settled  # noqa: E402
from stepwell.model.kv_scales import KvScales  # noqa: E402

OLD, NEW = (KvScales(torch.full((1, 2), one), torch.ones(1, 2)) for one in (0.5, 4.0))


class OfSeveral:
    """A rank among others, `missing` of which lack scales."""

    def __init__(self, missing: bool) -> None:
        self.missing = missing

    def largest(self, value: float) -> float:
        return max(value, float(self.missing))


@pytest.mark.parametrize(
    ("found", "missing_elsewhere", "calibrates", "kept"),
    [(None, False, 1, NEW), (None, True, 1, NEW), (OLD, False, 0, OLD), (OLD, True, 1, OLD)],
)
def test_a_rank_computes_with_those_that_must_and_keeps_what_its_own_pages_have(
    tmp_path: Path, found: KvScales | None, missing_elsewhere: bool, calibrates: int, kept: KvScales
) -> None:
    calls = []

    def calibrate() -> KvScales:
        calls.append(1)
        return NEW

    naming, ranks = Naming("name", found, tmp_path / "kv-scales-x.safetensors"), OfSeveral(missing_elsewhere)
    fake: Any = ranks
    assert settled(naming, fake, calibrate) is kept
    assert len(calls) == calibrates
    assert (tmp_path / "kv-scales-x.safetensors").exists() == (found is None), "what is found is not written again"


def test_a_folder_that_takes_no_file_is_told_with_its_flag(tmp_path: Path) -> None:
    naming, alone = Naming("name", None, tmp_path / "gone" / "kv-scales-x.safetensors"), OfSeveral(False)
    fake: Any = alone
    with pytest.raises(ConfigError, match=r"--calculate-kv-scales: .*gone.*No such file"):
        settled(naming, fake, lambda: NEW)
