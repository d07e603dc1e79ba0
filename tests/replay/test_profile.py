"""Profiles: those that come with the package, and files of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.cost import CostModel
from stepwell.replay.profile import DEFAULT, Profile, load_profile, profile_names, write_profile


def test_the_default_profile_is_the_default_cost_model() -> None:
    found, plain = load_profile(DEFAULT), CostModel()
    for name in CostModel.__dataclass_fields__:
        assert getattr(found.costs, name) == pytest.approx(getattr(plain, name), rel=1e-3), name
    assert 6_000 < found.rung_tokens < 6_300


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_states_its_sources_and_sizes(name: str) -> None:
    found = load_profile(name)
    assert found.name == name
    assert "measured on an H200" in found.source and "assumed" in found.source
    assert 3_000 < found.rung_tokens < 7_000


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    made = Profile("mine", 'said "quoted"\nand éà', 123_456, CostModel(prefill_tokens_per_s=1234.5, to_disk=1e8))
    write_profile(made, tmp_path / "p.toml")
    assert load_profile(str(tmp_path / "p.toml")) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image_bytes = ", "not TOML"),
        ("[cost]\n", "image_bytes must be"),
        ("image_bytes = -1", "image_bytes must be"),
        ("image_bytes = 1\n[cost]\nspeed = 3", "may hold"),
        ("image_bytes = 1\ncost = 3", "may hold"),
        ('image_bytes = 1\n[cost]\nto_disk = "fast"', "to_disk must be a number"),
        ("image_bytes = 1\n[cost]\nkv_bytes_per_token = 1.5", "kv_bytes_per_token must be a whole number"),
        ("image_bytes = 1\n[cost]\nto_disk = 0", "to_disk must be above 0"),
        ("#" * (1 << 20) + "\n\n", "larger than 1 MiB"),
    ],
)
def test_a_bad_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_profile(str(tmp_path / "p.toml"))


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=DEFAULT):
        load_profile("nowhere")
    with pytest.raises(ConfigError, match="cannot write"):
        write_profile(load_profile(DEFAULT), tmp_path / "no" / "p.toml")
