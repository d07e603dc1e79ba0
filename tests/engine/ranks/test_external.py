"""Two real ranks above LMCache: each stores its part under its own keys, a load is offered only where both have theirs, and a part that
is missing on one costs the load alone.

LMCache itself, in files; the laws run the same with a store of the tests (tests/laws/test_external.py).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.cache.reuse.outcome import Reason  # noqa: E402
from tests.engine.disk import Engine, small_model  # noqa: E402
from tests.engine.test_external_tier import (  # noqa: E402
    LIMIT,
    PROMPT,
    forget_at_rest,
    objects_in,
    redis,
    with_lmcache,
    with_redis,
)

__all__ = ["redis"]
pytestmark = with_lmcache
HITS = (0, 16, 112, 240)
PIECES = 4
"""Of each rank: two chunks, and one state in two pieces."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def cold(model: Path) -> tuple[int, ...]:
    """The answer of two ranks without any cache."""
    with Engine.of(model, None, enable_prefix_caching=False, rung_grid=16, tensor_parallel_size=2) as engine:
        return engine.ask(PROMPT).token_ids


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.1")
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "256")
    return monkeypatch


@pytest.fixture
def files(settings: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    settings.setenv("LMCACHE_LOCAL_DISK", str(tmp_path))
    settings.setenv("LMCACHE_MAX_LOCAL_DISK_SIZE", "0.1")
    return tmp_path


def engine(model: Path, **flags: Any) -> Engine:
    return Engine.of(model, None, kv_offload="lmcache", host_memory=0, rung_grid=16, tensor_parallel_size=2, **flags)


def of_rank(files: Path, rank: int) -> list[Path]:
    """What one of two ranks has stored."""
    return [
        path
        for path in files.rglob("*")
        if path.is_file() and f"@0x{2 << 24 | rank << 16 | 2 << 8 | rank:08x}" in path.name
    ]


def stored(model: Path, is_stored: Callable[[], bool]) -> None:
    """Have an engine store the prompt, until all of it is where it stays."""
    with engine(model) as one:
        one.ask(PROMPT)
        one.settle()
        end = time.monotonic() + LIMIT
        while not is_stored():
            assert time.monotonic() < end, "not stored"
            time.sleep(0.05)


def in_files(files: Path) -> Callable[[], bool]:
    return lambda: all(len(of_rank(files, rank)) == PIECES for rank in (0, 1))


def test_a_load_on_both_ranks_gives_the_cold_answer_and_each_has_keys_of_its_own(
    model: Path, cold: tuple[int, ...], files: Path
) -> None:
    with engine(model) as one:
        one.ask(PROMPT)
        for hit in HITS:
            forget_at_rest(one)
            if hit:
                one.ask(PROMPT[: hit + 1])
                one.settle()
            said = one.ask(PROMPT)
            assert (said.outcome.hit, said.outcome.external, said.token_ids) == (hit, 512 - hit, cold)
        one.settle()
    assert of_rank(files, 0) and len(of_rank(files, 0)) == len(of_rank(files, 1))


def states(files: Path, rank: int) -> list[Path]:
    return [path for path in of_rank(files, rank) if "@0@" not in path.name]


def test_another_engine_goes_on_from_what_two_ranks_have_stored(
    model: Path, cold: tuple[int, ...], files: Path
) -> None:
    stored(model, in_files(files))
    with engine(model) as other:
        said = other.ask(PROMPT)
        assert (said.outcome.external, said.outcome.state_tier, said.token_ids) == (512, Tier.EXTERNAL, cold)


def test_one_rank_has_nothing_of_what_two_have_stored(model: Path, files: Path) -> None:
    stored(model, in_files(files))
    with Engine.of(model, None, kv_offload="lmcache", host_memory=0, rung_grid=16) as alone:
        assert alone.ask(PROMPT).outcome.external == 0


def test_a_state_that_one_rank_has_lost_is_not_offered(model: Path, cold: tuple[int, ...], files: Path) -> None:
    stored(model, in_files(files))
    for path in states(files, 1):
        path.unlink()
    with engine(model) as other:
        said = other.ask(PROMPT)
        assert (said.outcome.external, said.outcome.reason, said.token_ids) == (0, Reason.COMPLETE, cold)
        forget_at_rest(other)
        assert other.ask(PROMPT).outcome.external == 512  # it has been stored again


@pytest.mark.parametrize(
    ("harm", "lookup"), [("garbage", "all"), ("gone", "rank0"), ("garbage", "rank0"), ("none", "rank0")]
)
def test_a_part_that_fails_on_one_rank_fails_the_load_on_both_and_is_told_with_its_rank(
    model: Path, cold: tuple[int, ...], files: Path, harm: str, lookup: str, capfd: pytest.CaptureFixture[str]
) -> None:
    stored(model, in_files(files))
    with engine(model, lmcache_lookup=lookup) as other:
        other.ask(PROMPT[:81])  # computed: too short to be asked for
        other.settle()
        for path in states(files, 1):
            if harm == "gone":
                path.unlink()
            elif harm == "garbage":
                data = bytearray(path.read_bytes())
                data[200] ^= 1
                path.write_bytes(data)
        said = other.ask(PROMPT)
        assert said.token_ids == cold
        if harm == "none":
            assert (said.outcome.external, said.outcome.hit) == (432, 80)
            return
        assert (said.outcome.boundary, said.outcome.hit, said.outcome.reason) == (80, 80, Reason.LOAD_FAILED_STATE)
        assert "state at token 512, rank 1" in "".join(capfd.readouterr())
        forget_at_rest(other)
        said = other.ask(PROMPT)
        assert (said.outcome.external, said.token_ids) == (512, cold)


@with_redis
def test_two_engines_of_two_ranks_share_what_redis_has(
    model: Path, cold: tuple[int, ...], settings: pytest.MonkeyPatch, redis: tuple[int, subprocess.Popen[bytes]]
) -> None:
    settings.setenv("LMCACHE_REMOTE_URL", f"redis://127.0.0.1:{redis[0]}")
    stored(model, lambda: objects_in(redis[0]) == 2 * PIECES)
    with engine(model) as other:
        said = other.ask(PROMPT)
        assert (said.outcome.external, said.token_ids) == (512, cold)
