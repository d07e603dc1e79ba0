"""On which memory node an anonymous mapping is to lie, for copies that cross no bridge between processors. Linux only.

`mbind` and its constants: https://man7.org/linux/man-pages/man2/mbind.2.html
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

_CALLS = {"x86_64": 237, "aarch64": 235}
"""Number of the system call by machine."""
_PREFERRED = 1  # another node, where that one is full
_BITS = 64


def node_of(pci_id: str, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The memory node beside a device on the bus, such as `0000:1b:00.0`; None where the machine has one node or does not say."""
    try:
        node = int((devices / pci_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def prefer_node(address: int, size: int, node: int) -> str:
    """Have pages of this memory, where they are first touched from now on, lie on `node`. Returns why that cannot be, or nothing."""
    number = _CALLS.get(platform.machine())
    if number is None or not 0 <= node < _BITS:
        return f"mbind is not known on {platform.machine()} for node {node}"
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.c_ulong(1 << node)
    code = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(size),
        ctypes.c_int(_PREFERRED),
        ctypes.byref(mask),
        ctypes.c_ulong(_BITS + 1),
        ctypes.c_uint(0),
    )
    return f"mbind: {os.strerror(ctypes.get_errno())}" if code else ""
