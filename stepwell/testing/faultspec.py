"""Faults as text, for a server under test: `stepwell serve --fault SPEC`, as often as there are faults.

    fail|delay|drop|duplicate : WHAT : ROUTE [: count=N] [: chance=P] [: seconds=S] [: copied=none|half|all]
    corrupt : WHAT : TIER [: count=N] [: chance=P]      flip a bit of what a copy is about to read; of disk: corrupt:*:disk:count=N
    disk : enospc [: after=SIZE]                        no space left after so many bytes
    disk : read-only | eio-read | eio-write | eio-sync [: after=CALLS] [: count=N]
    crash : POINT [: N]                                 die when this point of a write to disk is passed for the Nth time

    WHAT   kv, image, *           TIER  device, host, disk
    ROUTE  FROM->TO or *; FROM is a TIER or *; TO is a TIER, live (a live state) or *

`seconds` belongs to delay, `copied` to fail. Points are those of `stepwell.store.disk.files`.
"""

from __future__ import annotations

import errno
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from stepwell.base.errors import ConfigError
from stepwell.base.units import parse_size
from stepwell.cache.moves import Tier
from stepwell.store.disk.files import POINTS, Point
from stepwell.testing.disk import READ_ONLY, Call, FaultyFiles
from stepwell.testing.faults import LIVE, Copied, FaultPlan, Where

Action: TypeAlias = Literal["fail", "delay", "drop", "duplicate"]
What: TypeAlias = Literal["kv", "image"]

ACTIONS: tuple[Action, ...] = get_args(Action)
_CALLS: dict[str, tuple[tuple[Call, ...], int]] = {
    "eio-read": (("read",), errno.EIO),
    "eio-write": (("write",), errno.EIO),
    "eio-sync": (("sync",), errno.EIO),
    "read-only": (READ_ONLY, errno.EROFS),
}
_COPIED: dict[str, Copied] = {"none": "none", "half": "half", "all": "all"}
_TIERS = {tier.name.lower(): tier for tier in Tier}


@dataclass(frozen=True, slots=True)
class MoveFault:
    """What may befall a copy."""

    action: Action
    where: Where
    count: int | None = None
    chance: float = 1.0
    seconds: float = 0.0
    copied: Copied = "none"


@dataclass(frozen=True, slots=True)
class Corruption:
    """A bit is flipped in what a copy from `tier` is about to read; None is either kind."""

    what: What | None
    tier: Tier
    count: int | None = None
    chance: float = 1.0


@dataclass(frozen=True, slots=True)
class DiskFault:
    """What the file system refuses. `after` counts bytes for "enospc" and calls for the others."""

    kind: str
    after: int = 0
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies when `point` is passed for the `passes`-th time."""

    point: str
    passes: int = 1


@dataclass(frozen=True, slots=True)
class Faults:
    """Everything that is to go wrong."""

    moves: tuple[MoveFault, ...] = ()
    corruptions: tuple[Corruption, ...] = ()
    disk: tuple[DiskFault, ...] = ()
    crashes: tuple[Crash, ...] = ()

    @property
    def of_disk(self) -> bool:
        """Whether any of them needs a disk tier."""
        return bool(self.disk or self.crashes)


def parse_faults(specs: Iterable[str]) -> Faults:
    """What `specs` ask for. Raises ConfigError that says how to write the one at fault."""
    found = [_parse(spec) for spec in specs]
    return Faults(
        tuple(f for f in found if isinstance(f, MoveFault)),
        tuple(f for f in found if isinstance(f, Corruption)),
        tuple(f for f in found if isinstance(f, DiskFault)),
        tuple(f for f in found if isinstance(f, Crash)),
    )


def plan_of(faults: Faults, rng: random.Random) -> FaultPlan:
    """The faults of copies, for a `FaultyMover`."""
    plan = FaultPlan(rng)
    for fault in faults.moves:
        match fault.action:
            case "fail":
                plan.fail(fault.where, copied=fault.copied, count=fault.count, chance=fault.chance)
            case "delay":
                plan.delay(fault.where, seconds=fault.seconds, count=fault.count, chance=fault.chance)
            case "drop":
                plan.drop(fault.where, count=fault.count, chance=fault.chance)
            case "duplicate":
                plan.duplicate(fault.where, count=fault.count, chance=fault.chance)
    return plan


def files_of(faults: Faults, rng: random.Random) -> FaultyFiles:
    """The faults of the file system, for a disk store."""
    files = FaultyFiles(rng)
    for fault in faults.disk:
        if fault.kind == "enospc":
            files.fill(fault.after)
        elif fault.kind == "flip":
            files.flip(fault.count or 1)
        else:
            calls, error = _CALLS[fault.kind]
            for call in calls:
                files.fail(call, error, after=fault.after, count=fault.count)
    return files


def point_of(faults: Faults, die: Callable[[], None]) -> Point:
    """Calls `die` where a crash is asked for. May be passed from any thread."""
    passed: Counter[str] = Counter()
    lock = threading.Lock()
    due = {(crash.point, crash.passes) for crash in faults.crashes}

    def point(name: str) -> None:
        with lock:
            passed[name] += 1
            count = passed[name]
        if (name, count) in due:
            die()

    return point


def _parse(spec: str) -> MoveFault | Corruption | DiskFault | Crash:
    head, *rest = spec.split(":")
    match head:
        case "fail" | "delay" | "drop" | "duplicate":
            return _move_fault(spec, head, rest)
        case "corrupt":
            return _corruption(spec, rest)
        case "disk":
            return _disk_fault(spec, rest)
        case "crash":
            return _crash(spec, rest)
    raise _wrong(spec, f"it begins with {head!r}", f"begin with {', '.join(ACTIONS)}, corrupt, disk or crash")


def _move_fault(spec: str, action: Action, rest: list[str]) -> MoveFault:
    if len(rest) < 2:
        raise _wrong(
            spec, "WHAT or ROUTE is missing", f"write {action}:kv:host->device, or {action}:*:* for every copy"
        )
    own = {"delay": ("seconds",), "fail": ("copied",)}.get(action, ())
    options = _options(spec, rest[2:], ("count", "chance", *own))
    if action == "delay" and "seconds" not in options:
        raise _wrong(spec, "a delay has no length", "add :seconds=0.2")
    copied = options.get("copied", "none")
    if copied not in _COPIED:
        raise _wrong(spec, f"copied={copied}", f"use {', '.join(_COPIED)}")
    where, seconds = _where(spec, rest[0], rest[1]), _number(spec, options, "seconds", 0.0)
    return MoveFault(action, where, _count(spec, options), _chance(spec, options), seconds, _COPIED[copied])


def _corruption(spec: str, rest: list[str]) -> Corruption | DiskFault:
    if len(rest) < 2:
        raise _wrong(spec, "WHAT or TIER is missing", "write corrupt:kv:host:chance=0.01")
    if rest[1] == "disk":
        options = _options(spec, rest[2:], ("count",))
        if rest[0] != "*":
            raise _wrong(
                spec, "what a file holds is not known where its bits are flipped", "write corrupt:*:disk:count=1"
            )
        return DiskFault("flip", count=_count(spec, options) or 1)
    options = _options(spec, rest[2:], ("count", "chance"))
    return Corruption(_what(spec, rest[0]), _tier(spec, rest[1]), _count(spec, options), _chance(spec, options))


def _disk_fault(spec: str, rest: list[str]) -> DiskFault:
    kind = rest[0] if rest else ""
    if kind == "enospc":
        options = _options(spec, rest[1:], ("after",))
        return DiskFault(kind, _size(spec, options.get("after", "0")))
    if kind not in _CALLS:
        raise _wrong(spec, f"{kind!r} is no fault of a disk", f"use enospc, {', '.join(_CALLS)}")
    options = _options(spec, rest[1:], ("after", "count"))
    return DiskFault(kind, int(_number(spec, options, "after", 0.0)), _count(spec, options))


def _crash(spec: str, rest: list[str]) -> Crash:
    if not rest or rest[0] not in POINTS:
        raise _wrong(spec, "it names no point of a write to disk", f"use one of {', '.join(POINTS)}")
    passes = rest[1] if len(rest) > 1 else "1"
    if len(rest) > 2 or not passes.isdecimal() or int(passes) < 1:
        raise _wrong(spec, "the number of the pass", f"write crash:{rest[0]}:2 for the second one")
    return Crash(rest[0], int(passes))


def _what(spec: str, text: str) -> What | None:
    match text:
        case "kv" | "image":
            return text
        case "*":
            return None
    raise _wrong(spec, f"WHAT is {text!r}", "use kv, image or *")


def _tier(spec: str, text: str) -> Tier:
    if text not in _TIERS:
        raise _wrong(spec, f"{text!r} is no tier", f"use {', '.join(_TIERS)}")
    return _TIERS[text]


def _where(spec: str, what: str, route: str) -> Where:
    if route == "*":
        return Where(_what(spec, what))
    source, arrow, target = route.partition("->")
    if not arrow:
        raise _wrong(spec, f"ROUTE is {route!r}", "write host->device, device->host, host->live, *->disk, or * for any")
    begins = None if source == "*" else _tier(spec, source)
    if target == "live":
        return Where(_what(spec, what), begins, LIVE)
    return Where(_what(spec, what), begins, None if target == "*" else _tier(spec, target))


def _options(spec: str, parts: list[str], known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in parts:
        name, sign, value = part.partition("=")
        if not sign or name not in known or name in options:
            raise _wrong(spec, f"{part!r}", f"options here are {', '.join(f'{n}=…' for n in known)}, each once")
        options[name] = value
    return options


def _count(spec: str, options: Mapping[str, str]) -> int | None:
    if "count" not in options:
        return None
    if not options["count"].isdecimal() or int(options["count"]) < 1:
        raise _wrong(spec, f"count={options['count']}", "count is a whole number, at least 1")
    return int(options["count"])


def _chance(spec: str, options: Mapping[str, str]) -> float:
    chance = _number(spec, options, "chance", 1.0)
    if chance > 1:
        raise _wrong(spec, f"chance={options['chance']}", "chance is between 0 and 1")
    return chance


def _number(spec: str, options: Mapping[str, str], name: str, default: float) -> float:
    try:
        number = float(options.get(name, default))
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise _wrong(spec, f"{name}={options.get(name)}", f"{name} is a number, at least 0")
    return number


def _size(spec: str, text: str) -> int:
    try:
        return parse_size(text)
    except ConfigError as error:
        raise _wrong(spec, f"after={text}", "after is a size such as 1MiB") from error


def _wrong(spec: str, what: str, instead: str) -> ConfigError:
    return ConfigError(f"--fault {spec!r}: {what}; {instead}")
