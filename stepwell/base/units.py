"""Sizes as people write and read them."""

from __future__ import annotations

import re

from stepwell.base.errors import ConfigError

_SUFFIX = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 2**30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
}
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes in `text`: `"8GiB"`, `"512 MB"`, `"1.5e9"`. Raises ConfigError on anything else."""
    match = _SIZE.match(text)
    if match is None or match[2].lower() not in _SUFFIX:
        raise ConfigError(f"cannot read {text!r} as a size: write a number and a unit, such as 8GiB or 512MB")
    return int(float(match[1]) * _SUFFIX[match[2].lower()])


def format_size(count: float) -> str:
    """`count` bytes in binary units: `"1.5 GiB"`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def ceil_div(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)


def floor_to(value: int, grid: int) -> int:
    """The largest multiple of `grid` that is ≤ `value`."""
    return value - value % grid


def ceil_to(value: int, grid: int) -> int:
    """The smallest multiple of `grid` that is ≥ `value`."""
    return -(-value // grid) * grid
