"""How many pages an engine takes where nobody says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.base.geometry import Geometry  # noqa: E402
from stepwell.engine.config import EngineConfig  # noqa: E402
from stepwell.engine.worker import sizes  # noqa: E402
from stepwell.ops.ranks import Alone  # noqa: E402

CPU = torch.device("cpu")
GEOMETRY = Geometry(block=16, page_bytes=1 << 20, image_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class Two(Alone):
    """The first of two ranks, which finds the other like itself."""

    @property
    def count(self) -> int:
        return 2


def test_ranks_on_a_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "available_memory", lambda: 8 << 30)
    config = EngineConfig("m", host_memory=0, max_model_len=64)
    alone = sizes.sizes_of(config, 1024, GEOMETRY, CPU)
    each = sizes.sizes_of(config, 1024, GEOMETRY, CPU, ranks=Two())
    assert (alone.pages, each.pages) == (2048, 1024)


def test_ranks_that_ask_for_more_than_their_part_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "available_memory", lambda: 8 << 30)
    config = EngineConfig("m", host_memory=0, device_memory=5 << 30, max_model_len=64)
    assert sizes.sizes_of(config, 1024, GEOMETRY, CPU).pages == 5 << 10
    with pytest.raises(ConfigError, match=r"5\.0 GiB .* 4\.0 GiB"):
        sizes.sizes_of(config, 1024, GEOMETRY, CPU, ranks=Two())
