"""Counts kernels that are compiled while requests wait: there should be none."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

log = logging.getLogger(__name__)


class Compiles:
    """Listens from `begin` on, if Triton is there. One at a time in a process: Triton has one hook."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        if importlib.util.find_spec("triton") is None:
            return
        from triton import knobs

        knobs.runtime.jit_post_compile_hook = self._compiled

    def _compiled(self, *, repr: str, already_compiled: bool = False, **_: Any) -> None:
        if not already_compiled:
            self.count += 1
            log.warning(
                "a kernel was compiled while requests may wait: %s (%d since the start)", repr[:200], self.count
            )
