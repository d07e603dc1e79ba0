"""KV in FP8 and states in bfloat16: found again in every tier, and never read by an engine with another type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.ops.attention import places, write_kv  # noqa: E402
from stepwell.store.device import Precision  # noqa: E402
from tests.engine.disk import Engine, small_model, sources  # noqa: E402
from tests.engine.test_disk_tier import to_host  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "hybrid")


def test_every_route_gives_the_cold_answer_and_no_other_type_is_read(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk, kv_cache_dtype="fp8") as engine:
        seen = [engine.ask(), engine.ask()]
        engine.settle()
        to_host(engine)
        engine.forget(Tier.DEVICE)
        seen.append(engine.ask())
        engine.forget(Tier.DEVICE, Tier.HOST)
        seen.append(engine.ask())
        engine.settle()
        pages = engine.loop.directory.config.device_pages
    with Engine.of(model, disk, kv_cache_dtype="fp8_e4m3") as engine:
        seen.append(engine.ask())
        engine.settle()
    routes = [(0, 0, 0, 150), (128, 0, 0, 22), (0, 128, 0, 22), (0, 0, 128, 22), (0, 0, 128, 22)]
    assert [sources(one.outcome) for one in seen] == routes
    assert len({one.token_ids for one in seen}) == 1
    with Engine.of(model, disk) as engine:
        assert sources(engine.ask().outcome) == (0, 0, 0, 150), "pages of another type"
        engine.settle()
        # float32 takes four times as much; pages that images need do not shrink
        assert 3.5 < pages / engine.loop.directory.config.device_pages <= 4
    with Engine.of(model, disk, kv_cache_dtype="fp8") as engine:
        assert sources(engine.ask().outcome) == (0, 0, 128, 22), "its own are still there"


def test_large_values_are_clamped() -> None:
    pages = torch.zeros(2, 3, 4, 1, 8).to(torch.float8_e4m3fn)
    big = torch.tensor([1e9, -1e9, 449.0, 464.0, 480.0, float("inf"), float("-inf"), 1.0]).view(1, 1, 8)
    place = places(np.array([1]), np.array([2]), pages[0])
    write_kv(big, -big, pages[0], pages[1], torch.from_numpy(place))
    expected = torch.tensor([448.0, -448.0, 448.0, 448.0, 448.0, 448.0, -448.0, 1.0])
    assert torch.equal(pages[0, 1, 2, 0].float(), expected) and torch.equal(pages[1, 1, 2, 0].float(), -expected)


def test_a_type_that_the_model_has_not_is_refused() -> None:
    assert Precision.of(torch.bfloat16, "bfloat16") == Precision.of(torch.bfloat16)
    with pytest.raises(ConfigError, match="--kv-cache-dtype bfloat16 needs --dtype bfloat16"):
        Precision.of(torch.float32, "bfloat16")


def test_states_in_bfloat16_take_half_and_are_read_by_no_other_engine(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk, state_dtype="bfloat16") as engine:
        seen = [engine.ask(), engine.ask()]
        engine.settle()
        small = engine.loop.directory.config.geometry.image_bytes
    assert [sources(one.outcome) for one in seen] == [(0, 0, 0, 150), (128, 0, 0, 22)]
    with Engine.of(model, disk) as engine:
        assert sources(engine.ask().outcome) == (0, 0, 0, 150)
        engine.settle()
        assert small < 0.7 * engine.loop.directory.config.geometry.image_bytes
    with Engine.of(model, disk, state_dtype="bfloat16") as engine:
        assert sources(engine.ask().outcome) == (0, 0, 128, 22)
