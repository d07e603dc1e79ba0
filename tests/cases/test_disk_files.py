"""The disk tier on real files: after kills, under other models, over files that are damaged, planted or gone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.store.disk.record import Kind, Layout
from tests.cache.builders import join, numbers
from tests.cases.on_files import OnFiles, stems

ROOT = Path(__file__).resolve().parents[2]
LONG = numbers(65, 1)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*/segments/*.seg"))


def left_by_another(path: Path, *prompts: Ints, **options: object) -> Path:
    """What a process that has ended in good order leaves."""
    with OnFiles(path, **options) as engine:  # type: ignore[arg-type]
        for prompt in prompts or (LONG,):
            engine.ask(prompt)
    return path


class TestOneProcessAfterAnother:
    def test_a_conversation_goes_on(self, tmp_path: Path) -> None:
        path = left_by_another(tmp_path / "disk")
        with OnFiles(path) as engine:
            how = engine.ask(join(LONG, numbers(9, 2)))
            assert (how.disk, how.boundary) == (64, 64)
            assert engine.ask(LONG, salt="another").cached == 0

    def test_nothing_but_the_folder_is_needed_to_find_it(self, tmp_path: Path) -> None:
        """Other seeds of hashes, another working folder, no environment."""
        program = "import sys; from pathlib import Path; from tests.cases.test_disk_files import *\n"
        program += "with OnFiles(Path(sys.argv[1])) as engine:\n"
        program += "    how = engine.ask(LONG); print(how.disk, how.recomputed)"
        answers = []
        for seed in ("1", "2"):
            done = subprocess.run(
                [sys.executable, "-c", program, str(tmp_path / "disk")],
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            answers.append(done.stdout.split())
        assert answers == [["0", "65"], ["64", "1"]]

    def test_killed_at_any_moment_it_comes_back_right(self, tmp_path: Path) -> None:
        path, rng, found = tmp_path / "disk", random.Random(1), 0
        for life in range(3):
            program = [sys.executable, "-m", "tests.cases.on_files", str(path), str(life)]
            with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"serving\n"
                time.sleep(rng.uniform(0.1, 0.5))
                process.kill()
            with OnFiles(path) as engine:
                for stem in stems():
                    found += engine.ask(join(stem, numbers(3, life))).disk
        assert found > 0


class TestOtherModels:
    def test_of_another_fingerprint_nothing_is_found_and_nothing_is_lost(self, tmp_path: Path) -> None:
        """Weights, adapter, element type, layout, ranks: whatever is in the fingerprint keeps a namespace of its own."""
        path = left_by_another(tmp_path / "disk")
        for mark in (b"m", b"t", b"d"):
            with OnFiles(path, fingerprint=mark * 32) as engine:
                assert engine.ask(LONG).cached == 0
                engine.forget_memory()
                assert engine.ask(LONG).disk == 64
        with OnFiles(path) as engine:
            assert engine.ask(LONG).disk == 64

    def test_a_namespace_moved_to_where_another_models_would_be_is_not_believed(self, tmp_path: Path) -> None:
        path = left_by_another(tmp_path / "disk")
        (mine,) = [entry for entry in path.iterdir() if entry.is_dir()]
        mine.rename(path / (b"m" * 8).hex())
        with OnFiles(path, fingerprint=b"m" * 32) as engine:
            assert engine.ask(LONG).cached == 0


Harm = Callable[[Path], None]


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def removed(path: Path) -> None:
    path.unlink()


def flipped(path: Path) -> None:
    raw = np.fromfile(path, np.uint8)
    raw[:: max(1, len(raw) // 64)] ^= 0x10
    raw.tofile(path)


def one_bit_of_a_page(path: Path) -> None:
    """Of the first page of the first record; every header is as it was."""
    raw = np.fromfile(path, np.uint8)
    raw[Layout(64, 4, 1, 16, bytes(32)).header_bytes(Kind.KV) + 5] ^= 1
    raw.tofile(path)


def zeroed_in_part(path: Path) -> None:
    raw = np.fromfile(path, np.uint8)
    raw[len(raw) // 4 : len(raw) // 2] = 0
    raw.tofile(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize(
    "harm", [truncated, emptied, removed, flipped, one_bit_of_a_page, zeroed_in_part, a_folder, a_link]
)
@pytest.mark.parametrize("running", [True, False], ids=["while-running", "between-processes"])
def test_whatever_becomes_of_a_file_answers_are_right_and_the_cache_works_again(
    tmp_path: Path, harm: Harm, running: bool
) -> None:
    """Each prompt fails to load at most once; then it is served without the disk, or from what was written anew."""
    prompts = [numbers(65, seed) for seed in range(3)]
    path = left_by_another(tmp_path / "disk", *prompts)
    if not running:
        for file in segments(path):
            harm(file)
    with OnFiles(path) as engine:
        if running:
            for file in segments(path):
                harm(file)
        came = sum(engine.ask(prompt).disk for prompt in prompts)
        assert came < 3 * 64 or (running and harm in (removed, a_folder, a_link)), "an open file outlives its name"
        failed = sum(engine.loop.stats().tally.reasons[r] for r in (Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE))
        assert failed <= len(prompts)
        engine.settle()
        engine.forget_memory()
        for prompt in prompts:
            engine.ask(prompt)
        again = sum(engine.loop.stats().tally.reasons[r] for r in (Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE))
        assert again == failed, "what failed once is not tried again"
        fresh = numbers(65, 9)
        engine.ask(fresh)
        engine.settle()
        engine.forget_memory()
        assert engine.ask(fresh).disk == 64


def planted() -> Iterator[tuple[str, bytes]]:
    """Names in the folder, and what is put there."""
    bomb = b"cos\nsystem\n(S'touch planted-code-has-run'\ntR."
    endless = b"stepwell" + b"\xff" * 4096
    for content in (bomb, endless, np.full(512, np.nan).tobytes(), b"", b"{" * 100_000):
        yield "segments/00000099.seg", content
        yield "manifest.sqlite", content
        yield "namespace.json", content
        yield "../stray", content
    yield "namespace.json", b'{"format": 1' + b"0" * 5000 + b"}"


@pytest.mark.parametrize(("name", "content"), list(planted()))
def test_planted_files_run_nothing_and_are_believed_in_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    path = left_by_another(tmp_path / "disk")
    (space,) = [entry for entry in path.iterdir() if entry.is_dir()]
    (space / name).write_bytes(content)
    with OnFiles(path) as engine:
        engine.ask(LONG)
        engine.ask(join(LONG, numbers(9, 2)))
    assert not (tmp_path / "planted-code-has-run").exists()


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    """Neither read nor written nor removed: what they point to is as it was."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"not ours")
    path = left_by_another(tmp_path / "disk")
    (space,) = [entry for entry in path.iterdir() if entry.is_dir()]
    for name in ("segments/00000098.seg", "namespace.new", "fedcba9876543210"):
        link = (path if name.startswith("f") else space) / name
        link.symlink_to(outside)
    for file in segments(path):
        if not file.is_symlink():
            file.unlink()
            file.symlink_to(outside)
    with OnFiles(path) as engine:
        assert engine.ask(LONG).disk == 0
        engine.ask(numbers(65, 3))
    assert outside.read_bytes() == b"not ours"


def test_what_is_reported_as_used_is_what_the_folder_takes_also_after_a_restart(tmp_path: Path) -> None:
    path = left_by_another(tmp_path / "disk", *(numbers(65, seed) for seed in range(12)))
    with OnFiles(path) as engine:
        assert engine.loop.directory.use(Tier.DISK).cached == 12 * 17
        taken = subprocess.run(["du", "-s", "--block-size=1", str(path)], capture_output=True, text=True, check=True)
        assert engine.store.usage == pytest.approx(int(taken.stdout.split()[0]), rel=0.01)
        assert engine.store.stats().dormant_pages == 12 * 17


def test_a_long_chat_is_written_once_and_not_again_by_the_next_process(tmp_path: Path) -> None:
    path, chat, written, pages = tmp_path / "disk", numbers(30, 1), 0, 0
    for life in range(3):
        with OnFiles(path, pages=200, host=300) as engine:
            for turn in range(8):
                how = engine.ask(chat, 5)
                assert not (life and not turn) or how.disk > len(chat) - 16
                chat = join(chat, numbers(6, 100 * life + turn))
            engine.settle()
            written += engine.store.stats().bytes_demoted // engine.store.layout.page_bytes
            pages = engine.loop.directory.use(Tier.DISK).cached
    assert written <= 1.2 * pages


@pytest.mark.parametrize(("page", "image"), [(124_800, 24_400_000), (166_400, 32_900_000), (393_216, 78_000_000)])
def test_a_record_takes_little_more_than_its_pages(page: int, image: int) -> None:
    """Bytes of a page and of an image as real models have them; a page alone in a record is the worst case."""
    layout = Layout(page, 16, -(-image // page), 256, bytes(32))
    for kind, pages in ((Kind.KV, 1), (Kind.KV, 16), (Kind.IMAGE, layout.image_pages)):
        assert layout.record_bytes(kind, pages) <= 1.1 * pages * page
