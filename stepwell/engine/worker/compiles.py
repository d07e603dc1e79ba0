"""Counts kernels that Triton compiles: while requests may wait there should be none."""

from __future__ import annotations

import importlib.util
import logging
import threading
from typing import Any

log = logging.getLogger(__name__)


class Compiles:
    """Kernels compiled since `listen`, those that Triton found in its cache on disk not among them. One at a time in a process: Triton has
    one listener.

    at_start, serving   before `serve` was called, and since
    """

    __slots__ = ("_lock", "_serves", "at_start", "serving")

    def __init__(self) -> None:
        self.at_start = self.serving = 0
        self._serves = False
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Count from now on, if Triton is there."""
        if importlib.util.find_spec("triton") is None:
            return
        from triton import knobs

        knobs.compilation.listener = self._compiled

    def serve(self) -> None:
        """Requests may wait from now on: each kernel is told in the log."""
        self._serves = True

    def _compiled(self, *, src: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            return
        with self._lock:
            self.serving += self._serves
            self.at_start += not self._serves
        if self._serves:
            log.warning(
                "a kernel was compiled while requests may wait: %s (%d since the start)", src.name, self.serving
            )
