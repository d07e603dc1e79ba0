"""A real hybrid with a disk tier: every route gives the cold answer, and no bad disk gives another."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.base.shapes import ModelShape  # noqa: E402
from stepwell.cache.evict.make_room import demote  # noqa: E402
from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.engine.disk_tier import identity, layout_of  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.store.device import Precision  # noqa: E402
from tests.engine.disk import PROMPT, SMALL, Engine, small_config, small_model, sources  # noqa: E402

Names = Callable[[], list[str]]
MEMORY = (Tier.DEVICE, Tier.HOST)
AGAIN = """
import json, sys, torch
torch.set_num_threads(1)
from stepwell import LLM, SamplingParams
model, disk, prompt, flags = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
llm = LLM(model, disk_cache=disk + ":64MiB", **flags)
for asked in prompt, prompt, prompt[::-1]:
    said = llm.generate([asked], SamplingParams(max_tokens=8, ignore_eos=True))[0]
    print(json.dumps([said.token_ids, said.outcome.device, said.outcome.host, said.outcome.disk]))
"""
"""Closes nothing: the end of Python must do."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def steady_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is worth a write must not hang on how busy this machine's disk is."""
    monkeypatch.setattr("stepwell.engine.disk_tier.read_speed", lambda folder, budget: 1e9)


@pytest.fixture(scope="module")
def cold(model: Path) -> tuple[int, ...]:
    """The answer without any cache."""
    with Engine.of(model, None, enable_prefix_caching=False) as engine:
        return engine.ask().token_ids


@pytest.fixture
def ours() -> Names:
    """Names of the threads that an engine of this test runs."""
    before = threading.enumerate()
    return lambda: [t.name for t in threading.enumerate() if t.name.startswith("stepwell") and t not in before]


def segments(disk: Path) -> Iterator[Path]:
    return disk.glob("*/segments/*.seg")


def to_host(engine: Engine) -> None:
    """Have everything copied down from the device."""
    directory = engine.loop.directory
    engine.loop.queues.moves.extend(demote(directory, directory.config.device_pages))
    engine.settle()


def test_every_route_gives_the_cold_answer(model: Path, cold: tuple[int, ...], tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk) as engine:
        seen = [engine.ask()]
        seen.append(engine.ask())
        engine.settle()
        to_host(engine)
        engine.forget(Tier.DEVICE)
        seen.append(engine.ask())
        engine.forget(*MEMORY)
        seen.append(engine.ask())
        state = [one.outcome.state_tier for one in seen]
    assert [sources(one.outcome) for one in seen] == [(0, 0, 0, 150), (128, 0, 0, 22), (0, 128, 0, 22), (0, 0, 128, 22)]
    assert state == [None, Tier.DEVICE, Tier.HOST, Tier.DISK]
    assert {one.token_ids for one in seen} == {cold}
    arguments = [str(model), str(disk), json.dumps(PROMPT), json.dumps(SMALL)]
    ran = subprocess.run([sys.executable, "-c", AGAIN, *arguments], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    *again, new = [json.loads(line) for line in ran.stdout.splitlines()]
    assert again == [[list(cold), 0, 0, 128], [list(cold), 128, 0, 0]]
    with Engine.of(model, disk) as engine:
        said = engine.ask(PROMPT[::-1])
    assert (list(said.token_ids), *sources(said.outcome)[:3]) == (new[0], 0, 0, 128)


def test_disk_right_below_the_device(model: Path, cold: tuple[int, ...], tmp_path: Path) -> None:
    with Engine.of(model, tmp_path / "cache", host_memory="0") as engine:
        engine.ask()
        engine.forget(Tier.DEVICE)
        said = engine.ask()
    assert sources(said.outcome) == (0, 0, 128, 22)
    assert said.token_ids == cold


def test_the_end_writes_what_is_worth_it_and_leaves_neither_threads_nor_locks(
    model: Path, tmp_path: Path, ours: Names
) -> None:
    with Engine.of(model, tmp_path / "cache") as engine:
        engine.ask()
        assert ours()
        assert engine.llm.stats().disk["records_published"] == 0  # nothing is written while a caller waits
    assert not ours()
    with Engine.of(model, tmp_path / "cache") as engine:
        assert engine.ask().outcome.disk == 128


def test_an_end_without_time_loses_the_cache_and_nothing_else(
    model: Path, cold: tuple[int, ...], tmp_path: Path, ours: Names
) -> None:
    engine = Engine.of(model, tmp_path / "cache")
    engine.ask()
    engine.llm.close(patience=0.0)
    engine.llm.close()
    assert not ours()
    with Engine.of(model, tmp_path / "cache") as engine:
        said = engine.ask()
    assert said.outcome.cached == 0 and said.token_ids == cold


def test_a_loop_that_has_raised_lets_go_of_the_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: Names
) -> None:
    engine = Engine.of(model, tmp_path / "cache")

    def fails(*_: object) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="on purpose"):
        patched.setattr(engine.loop, "step", fails)
        engine.ask()
    assert not ours()
    Engine.of(model, tmp_path / "cache").llm.close()


def test_a_second_engine_on_the_folder_is_told_before_anything_is_loaded(
    model: Path, tmp_path: Path, ours: Names
) -> None:
    with Engine.of(model, tmp_path / "cache"):
        with pytest.raises(ConfigError, match=r"--disk-cache .* is in use by another engine \(pid \d+\): stop it"):
            Engine.of(model, tmp_path / "cache")
        assert ours()


def test_what_one_namespace_has_another_does_not_find(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk) as engine:
        engine.ask()
    others = {"dtype": "bfloat16"}, {"block_size": 32, "decode_rung_tokens": 32}, {"rung_grid": 128}
    for flags in others:
        with Engine.of(model, disk, max_num_batched_tokens=256, **flags) as engine:
            assert engine.ask().outcome.cached == 0, flags
    other = small_model(tmp_path / "other", seed=1)
    with Engine.of(other, disk) as engine:
        assert engine.ask().outcome.cached == 0
    with Engine.of(model, disk) as engine:
        assert engine.ask().outcome.disk == 128
    assert len(list(disk.glob("*/namespace.json"))) == 5


def test_all_that_bytes_depend_on_makes_a_namespace_of_its_own(model: Path, tmp_path: Path) -> None:
    shape = HybridConfig.from_file(model).shape
    other = small_model(tmp_path / "other", seed=1)
    full = Precision(torch.float32, torch.float32)
    half = Precision(torch.bfloat16, torch.float32)
    rounded = Precision(torch.float32, torch.float32, torch.bfloat16)

    def name(
        directory: Path = model,
        precision: Precision = full,
        of: ModelShape = shape,
        block: int = 16,
        grid: int = 64,
        device: str = "cpu",
        ranks: tuple[int, int] = (1, 0),
        dummy: int | None = None,
    ) -> bytes:
        geometry = of.geometry(block, grid, precision.widths)
        return layout_of(geometry, identity(directory, of, geometry, precision, device, dummy, *ranks)).fingerprint

    names = [
        name(),
        name(other),
        name(precision=half),
        name(precision=rounded),
        name(precision=Precision.of(torch.float32, "fp8")),
        name(block=32),
        name(grid=128),
        name(device="cuda"),
        name(of=shape.shard(2), ranks=(2, 0)),
        name(of=shape.shard(2), ranks=(2, 1)),
        name(dummy=0),
        name(dummy=1),
    ]
    assert len(set(names)) == len(names)
    assert name() == names[0]


def test_blocks_that_do_not_fill_a_chunk_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--block-size 48"):
        Engine.of(model, tmp_path / "cache", block_size=48, rung_grid=96, state_checkpoint_interval_tokens=9600)


@pytest.mark.parametrize(("name", "named"), [("no/such/folder", "is not a folder; make it first"), ("file", "free")])
def test_a_folder_that_cannot_be_is_refused(model: Path, tmp_path: Path, name: str, named: str, ours: Names) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=f"--disk-cache .*{named}"):
        Engine.of(model, tmp_path / name)
    assert not ours()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("disk:enospc:after=100KB", errno.errorcode[errno.ENOSPC]),
        ("disk:read-only", errno.errorcode[errno.EROFS]),
        ("disk:eio-sync", errno.errorcode[errno.EIO]),
    ],
)
def test_a_disk_that_cannot_be_written_to_changes_no_answer(
    model: Path, cold: tuple[int, ...], tmp_path: Path, fault: str, cause: str
) -> None:
    engine = Engine.of(model, tmp_path / "cache", faults=(fault,))
    said = engine.ask()
    for _ in range(200):
        engine.loop.step()
        if engine.llm.stats().disk_problems:
            break
    stats = engine.llm.stats()
    assert stats.disk_problems[cause] >= 1 and stats.disk["failed_writes"] >= 1 and stats.disk["records_published"] == 0
    assert engine.ask().token_ids == said.token_ids == cold
    engine.llm.close(patience=0.0)


def test_a_segment_damaged_between_two_runs_costs_what_it_held(
    model: Path, cold: tuple[int, ...], tmp_path: Path
) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk) as engine:
        engine.ask()
    (segment,) = segments(disk)
    data = bytearray(segment.read_bytes())
    for at in range(6000, len(data), 8192):
        data[at] ^= 1
    segment.write_bytes(data)
    with Engine.of(model, disk) as engine:
        said = engine.ask()
        assert said.outcome.disk == 0 and said.token_ids == cold
        assert engine.llm.stats().disk["records_quarantined"] >= 1
        engine.forget(*MEMORY)
        again = engine.ask()
        assert again.outcome.disk == 128 and again.token_ids == cold  # written anew


def test_damage_to_what_is_read_changes_no_answer(model: Path, cold: tuple[int, ...], tmp_path: Path) -> None:
    with Engine.of(model, tmp_path / "cache", faults=("corrupt:*:disk:count=1",)) as engine:
        engine.ask()
        engine.forget(*MEMORY)
        assert engine.ask().token_ids == cold
        assert engine.ask().token_ids == cold


def test_written_only_under_pressure_and_within_the_budget_where_that_is_asked_for(model: Path, tmp_path: Path) -> None:
    with Engine.of(model, tmp_path / "cache", disk_write_when="pressure") as engine:
        engine.ask()
        engine.settle()
        assert engine.llm.stats().disk["records_published"] == 0
    config = small_config(model, tmp_path / "cache", disk_write_budget="1MB")
    assert config.disk_write_budget == 10**6
    with Engine.of(model, tmp_path / "cache", disk_write_budget="1MB") as engine:
        budget = engine.loop.directory.archive.budget
        assert budget.rate == pytest.approx(10**6 / engine.loop.directory.config.geometry.page_bytes)


def test_startup_table_shows_the_disk(model: Path, tmp_path: Path) -> None:
    with Engine.of(model, tmp_path / "cache") as engine:
        engine.ask()
        rows = {name: (value, note) for name, value, note in engine.llm.facts.memory_plan}
        assert rows["disk slots"] == (
            f"{engine.llm.stats().tiers[Tier.DISK].total:,}",
            f"within 64.0 MiB in {tmp_path}/cache",
        )
        assert rows["disk pages"][0] == "0"
        tiers, geometry = engine.llm.stats().tiers, engine.loop.directory.config.geometry
        each = 50_000 // geometry.block + geometry.image_pages
        device, host = tiers[Tier.DEVICE].total // each, tiers[Tier.HOST].total // each
        assert rows["holds"][0] == f"{device} in device, {host} in host"
    with Engine.of(model, tmp_path / "cache") as engine:
        (found,) = [row for row in engine.llm.facts.memory_plan if row[0] == "disk pages"]
        assert int(found[1]) > 0 and "in 1 files" in found[2]
