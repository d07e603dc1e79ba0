"""Faults as text: what can be written, what it does, and that every mistake teaches the grammar."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

from stepwell.base.errors import ConfigError
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.store.disk.files import POINTS
from stepwell.testing.faults import LIVE, Fate, Where
from stepwell.testing.faultspec import (
    Corruption,
    Crash,
    DiskFault,
    Faults,
    MoveFault,
    files_of,
    parse_faults,
    plan_of,
    point_of,
)

SLOTS = np.arange(2, dtype=np.int32)
LOAD = Move(1, "kv", Extent(Tier.HOST, SLOTS), Extent(Tier.DEVICE, SLOTS), 32)
SAVE = Move(2, "kv", Extent(Tier.DEVICE, SLOTS), Extent(Tier.HOST, SLOTS), 32)
STATE = Move(3, "image", Extent(Tier.HOST, SLOTS), LiveState(0), 32)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("fail:kv:host->device:count=1", MoveFault("fail", Where("kv", Tier.HOST, Tier.DEVICE), 1)),
        ("fail:*:*:copied=half", MoveFault("fail", Where(), copied="half")),
        (
            "delay:*:device->host:seconds=0.2:chance=0.5",
            MoveFault("delay", Where(None, Tier.DEVICE, Tier.HOST), chance=0.5, seconds=0.2),
        ),
        ("drop:image:host->live", MoveFault("drop", Where("image", Tier.HOST, LIVE))),
        ("duplicate:*:*", MoveFault("duplicate", Where())),
        ("drop:kv:*->disk", MoveFault("drop", Where("kv", None, Tier.DISK))),
        ("corrupt:kv:host:chance=0.01", Corruption("kv", Tier.HOST, chance=0.01)),
        ("corrupt:*:device:count=3", Corruption(None, Tier.DEVICE, 3)),
        ("corrupt:*:disk:count=2", DiskFault("flip", count=2)),
        ("disk:enospc:after=1MiB", DiskFault("enospc", 1 << 20)),
        ("disk:eio-read:count=2", DiskFault("eio-read", count=2)),
        ("disk:read-only", DiskFault("read-only")),
        ("crash:write.half", Crash("write.half")),
        ("crash:commit.after:3", Crash("commit.after", 3)),
    ],
)
def test_what_can_be_written(spec: str, fault: object) -> None:
    faults = parse_faults([spec])
    assert [*faults.moves, *faults.corruptions, *faults.disk, *faults.crashes] == [fault]
    assert faults.of_disk == spec.startswith(("disk", "crash", "corrupt:*:disk"))


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("", "begin with fail, delay"),
        ("explode:kv:*", "begin with fail, delay"),
        ("fail:kv", "fail:kv:host->device"),
        ("fail:pages:*", "use kv, image or *"),
        ("fail:kv:host", "write host->device"),
        ("fail:kv:gpu->host", "use device, host, disk"),
        ("fail:kv:host->gpu", "use device, host, disk"),
        ("fail:kv:*:seconds=1", "options here are count=…, chance=…, copied=…"),
        ("fail:kv:*:count", "each once"),
        ("fail:kv:*:count=1:count=2", "each once"),
        ("fail:kv:*:count=0", "at least 1"),
        ("fail:kv:*:chance=2", "between 0 and 1"),
        ("fail:kv:*:chance=nan", "at least 0"),
        ("fail:kv:*:copied=most", "none, half, all"),
        ("delay:kv:*", "add :seconds=0.2"),
        ("delay:kv:*:seconds=-1", "at least 0"),
        ("corrupt:kv", "corrupt:kv:host:chance=0.01"),
        ("corrupt:kv:live", "use device, host, disk"),
        ("corrupt:kv:disk", "corrupt:*:disk:count=1"),
        ("disk", "use enospc, eio-read"),
        ("disk:enospc:after=lots", "a size such as 1MiB"),
        ("disk:eio-read:after=x", "at least 0"),
        ("crash", "use one of segment.before"),
        ("crash:somewhere", "use one of segment.before"),
        ("crash:write.half:0", "crash:write.half:2"),
        ("crash:write.half:1:2", "crash:write.half:2"),
    ],
)
def test_a_mistake_is_told_with_the_way_to_write_it(spec: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_faults([spec])
    assert hint in str(error.value) and repr(spec) in str(error.value)


def test_copies_meet_what_was_asked_for() -> None:
    faults = parse_faults(["fail:kv:host->device:count=1", "delay:*:device->host:seconds=2", "drop:image:host->live"])
    plan = plan_of(faults, random.Random(0))
    first, second = plan.fate(LOAD), plan.fate(LOAD)
    assert first.error is not None and second == Fate()
    assert plan.fate(SAVE) == Fate(seconds=2.0)
    assert plan.fate(STATE) == Fate(dropped=True)


def test_files_refuse_what_was_asked_for(tmp_path: Path) -> None:
    files = files_of(parse_faults(["disk:enospc:after=4B", "disk:eio-read:after=1:count=1"]), random.Random(0))
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert files.pwritev(fd, [memoryview(b"abcdef")], 0) == 4
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        files.pwritev(fd, [memoryview(b"ef")], 4)
    buffer = bytearray(4)
    assert files.preadv(fd, [memoryview(buffer)], 0) == 4 and buffer == b"abcd"
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.preadv(fd, [memoryview(buffer)], 0)
    assert files.preadv(fd, [memoryview(buffer)], 0) == 4
    files.close(fd)
    flipping = files_of(parse_faults(["corrupt:*:disk:count=1"]), random.Random(0))
    fd = flipping.open(tmp_path / "file", os.O_RDWR)
    flipping.preadv(fd, [memoryview(buffer)], 0)
    assert buffer != b"abcd"
    flipping.close(fd)


def test_a_crash_comes_at_the_pass_that_was_asked_for() -> None:
    died: list[int] = []
    point = point_of(Faults(crashes=(Crash("sync.after", 2), Crash("write.half", 3))), lambda: died.append(len(died)))
    for name in ("sync.after", "write.half", "write.half", "sync.before"):
        point(name)
    assert not died
    point("sync.after")
    assert len(died) == 1
    point("write.half")
    assert len(died) == 2
    for name in POINTS:
        point(name)
    assert len(died) == 2
