"""Whatever happens to the bytes on disk, a read gives the right ones or fails."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path

import pytest

from stepwell.base.errors import StoreError
from stepwell.store.disk.record import Damaged
from tests.store.disk.rig import Chat, Rig, manifest_in, segments_in

CHAT = Chat(1)


def saved(path: Path) -> Path:
    """A folder with a conversation of 24 tokens and two images in it, closed."""
    rig = Rig(path)
    rig.save(CHAT, 0, 24)
    rig.save_image(CHAT, 16)
    rig.save_image(CHAT, 24)
    rig.store.close()
    return path


def flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def test_a_flipped_bit_in_any_byte_of_a_segment_is_a_miss(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    [segment] = segments_in(tmp_path / "c")
    rig = Rig(tmp_path / "c")
    rng = random.Random(1)
    trail = rig.trail(CHAT)
    found = [d for at in (0, 16, 24) for d in rig.under(trail.at(at))]
    rows_of = {"kv": lambda n: CHAT.kv(n.start, n.end, 64), "image": lambda n: CHAT.image(n.end, 64)}
    whole = [(d, rig.adopt(d), rows_of[d.what](d.name)) for d in found]
    assert len(whole) == 4
    missed = 0
    for at in range(segment.stat().st_size):
        bit = rng.randrange(8)
        flip(segment, at, bit)
        bad = 0
        for dormant, slots, right in whole:
            try:
                rows = rig.read(slots, dormant.name.end, dormant.what)
            except Damaged:
                bad += 1
            else:
                assert (rows == right).all()
        assert bad <= 1
        missed += bad
        flip(segment, at, bit)
    assert missed == segment.stat().st_size
    assert len(rig.store.inbox) == missed + len(whole)  # each is told to the writer, as the adoptions are


def test_what_is_found_damaged_goes_and_is_written_anew(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    [segment] = segments_in(tmp_path / "c")
    flip(segment, 250, 3)
    rig = Rig(tmp_path / "c")
    [dormant] = rig.under(rig.trail(CHAT).root)
    slots = rig.adopt(dormant)
    with pytest.raises(Damaged, match="recomputed"):
        rig.read(slots, 16)
    again = rig.save(CHAT, 0, 16)  # the strike and the new write may well be in one batch
    assert rig.holds(CHAT, 0, 16, again)
    with pytest.raises(StoreError):
        rig.read(slots, 16)
    stats = rig.store.stats()
    assert (stats.quarantined, stats.deduplicated, stats.failed_reads) == (1, 0, 2)
    rig = rig.again()
    assert rig.recall(CHAT) == (24, 2)


def test_a_bit_that_flips_on_the_way_is_caught(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    slots = rig.save(CHAT, 0, 24)
    rig.files.flip(1)
    with pytest.raises(Damaged):
        rig.read(slots, 24)


@pytest.mark.parametrize("length", [0, 1, 100, 299, 600])
def test_a_segment_cut_short_is_a_miss(tmp_path: Path, length: int) -> None:
    saved(tmp_path / "c")
    [segment] = segments_in(tmp_path / "c")
    with segment.open("r+b") as file:
        file.truncate(length)
    rig = Rig(tmp_path / "c")
    reach, images = rig.recall(CHAT)
    assert reach in (0, 16) and images == 0
    rig.save(CHAT, reach, 24) if reach else rig.save(CHAT, 0, 24)
    assert rig.again().recall(CHAT)[0] == 24


def test_a_segment_cut_short_under_a_running_engine_is_a_miss(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    slots = rig.save(CHAT, 0, 24)
    [segment] = segments_in(tmp_path / "c")
    with segment.open("r+b") as file:
        file.truncate(300)
    with pytest.raises(StoreError, match="ends before"):
        rig.read(slots, 24)


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_in_the_index_never_serve_a_wrong_byte(tmp_path: Path, seed: int) -> None:
    saved(tmp_path / "good")
    rng = random.Random(seed)
    for trial in range(12):
        path = tmp_path / f"c{trial}"
        shutil.copytree(tmp_path / "good", path)
        index = manifest_in(path)
        for _ in range(rng.choice((1, 1, 4, 40))):
            used = rng.random() < 0.7  # most of the file is empty pages: aim where the rows are
            content = index.read_bytes()
            spots = [i for i, byte in enumerate(content) if byte] if used else range(len(content))
            flip(index, rng.choice(spots), rng.randrange(8))
        rig = Rig(path)
        reach, images = rig.recall(CHAT)  # asserts that what is read is right
        assert reach in (0, 16, 24) and images <= 2
        if not rig.store.stats().problems:
            rig.run([])
        rig.store.close()
        shutil.rmtree(path)


def test_planted_files_and_links_are_neither_read_nor_followed(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    [segment] = segments_in(tmp_path / "c")
    outside = tmp_path / "outside"
    outside.write_bytes(segment.read_bytes())
    bomb = segment.parent / "00000007.seg"
    bomb.write_bytes(pickle.dumps({"exploded": True}))
    note = segment.parent / "README"
    note.write_text("left by a person")
    segment.unlink()
    segment.symlink_to(outside)
    rig = Rig(tmp_path / "c")
    assert rig.recall(CHAT) == (0, 0)
    assert outside.exists() and note.exists()
    assert not bomb.exists()
    rig.save(CHAT, 0, 24)
    assert rig.again().recall(CHAT) == (24, 0)
    assert outside.stat().st_size


def test_a_link_put_in_place_of_a_segment_under_way_is_not_followed(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    slots = rig.save(CHAT, 0, 24)
    [segment] = segments_in(tmp_path / "c")
    segment.rename(tmp_path / "moved")
    segment.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError):
        rig.read(slots, 24)


def test_a_record_moved_to_another_s_place_is_a_miss(tmp_path: Path) -> None:
    """Well formed, of the right model, sealed: and still not what the index says is there."""
    path = tmp_path / "c"
    rig, other = Rig(path), Chat(2)
    mine, theirs = rig.save(CHAT, 0, 16), rig.save(other, 0, 16)
    [segment] = segments_in(path)
    content = segment.read_bytes()
    half = len(content) // 2
    segment.write_bytes(content[half:] + content[:half])
    for slots in (mine, theirs):
        with pytest.raises(Damaged, match="not the record"):
            rig.read(slots, 16)
