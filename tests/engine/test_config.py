"""Flags are checked once, and every refusal names the flag."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.engine.config import DiskCache, EngineConfig, engine_config


def test_defaults_are_legal_and_sizes_may_be_text() -> None:
    config = engine_config({"model": "m", "device_memory": "2GiB", "host_memory": "0"})
    assert (config.device_memory, config.host_memory) == (2 * 2**30, 0)
    assert config.name == "m"
    assert EngineConfig("m", served_model_name="n").name == "n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("device", "tpu"),
        ("dtype", "int3"),
        ("kv_cache_dtype", "fp8_e5m2"),
        ("state_dtype", "float16"),
        ("load_format", "pickle"),
        ("tensor_parallel_size", 0),
        ("worker_timeout", 0.5),
        ("worker_timeout", float("inf")),
        ("block_size", 0),
        ("rung_grid", 65),
        ("max_model_len", 1),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 32),
        ("max_num_seqs", 3000),
        ("device_memory", 0),
        ("device_memory", "lots"),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.5),
        ("host_memory", -1),
        ("state_checkpoint_interval_tokens", 100),
        ("decode_rung_tokens", 17),
        ("min_load_tokens", -1),
        ("verify_resume", 1.5),
        ("verify_resume", -0.1),
        ("load_timeout", -1.0),
        ("load_timeout", float("inf")),
        ("seed", -1),
        ("no_such_flag", 1),
    ],
)
def test_what_cannot_work_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        engine_config({"model": "m", name: value})
    if name not in ("model", "device_memory"):
        assert "--" + name.replace("_", "-") in str(refusal.value)


def test_what_is_the_same_to_the_bit_needs_rungs_where_states_are_summed() -> None:
    assert EngineConfig("m", rung_grid=128, deterministic=True).rung_grid == 128
    with pytest.raises(ConfigError, match="--deterministic needs a --rung-grid"):
        EngineConfig("m", rung_grid=32, deterministic=True)
    with pytest.raises(ConfigError, match="--deterministic needs --state-dtype float32"):
        EngineConfig("m", state_dtype="bfloat16", deterministic=True)


def test_disk_cache_is_a_folder_and_a_size() -> None:
    config = engine_config({"model": "m", "disk_cache": "/var/a:b:200GiB", "disk_write_budget": "100MB"})
    assert config.disk_cache == DiskCache("/var/a:b", 200 * 2**30)
    assert config.disk_write_budget == 100_000_000
    assert str(config.disk_cache) == "/var/a:b:200.0GiB"
    assert DiskCache.parse(str(config.disk_cache)) == config.disk_cache


@pytest.mark.parametrize("text", ["/var/cache", ":1GiB", "/var/cache:", "/var/cache:much", "1GiB", ""])
def test_disk_cache_that_cannot_be_read_teaches_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--disk-cache .*PATH:SIZE, such as /var/cache/stepwell:200GiB"):
        engine_config({"model": "m", "disk_cache": text})


def test_disk_flags_that_cannot_work() -> None:
    for flags, named in (
        ({"disk_write_when": "often"}, "idle, pressure"),
        ({"disk_write_budget": 0}, "--disk-write-budget"),
        ({"disk_cache": "/x:1GiB", "enable_prefix_caching": False}, "--no-enable-prefix-caching"),
    ):
        with pytest.raises(ConfigError, match=named):
            engine_config({"model": "m", **flags})
