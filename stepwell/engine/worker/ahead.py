"""Compiles kernels several at once before the first of them is launched: one after the other, a first start takes a minute.

    rehearse   steps run on the device without any kernel of Triton's; those that have no binary yet are noted, with their constants
    compile    each on a thread: most of it is done without the interpreter's lock, or in a process of the assembler's
    prepare    the same steps in earnest; every kernel is there

What a rehearsed step computes is whatever lay in its memory. So its steps are such that no operation of torch reads an index that a kernel
has written: tokens are given, not drawn before, and nobody looks at log-probabilities.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)

_MOST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of Triton's, and for which types and constants it is to be compiled: as `JITFunction.preload` reads it."""

    function: Any
    wanted: str


@contextmanager
def rehearsal() -> Iterator[list[Kernel]]:
    """In the block this thread launches no kernel. The list holds those that would have to be compiled, each once."""
    from triton import knobs
    from triton.runtime.jit import JITFunction

    found: list[Kernel] = []
    seen: set[tuple[int, str]] = set()

    own, launch, hook = threading.get_ident(), JITFunction.run, knobs.runtime.jit_cache_hook

    def note(*, fn: Any, compile: dict[str, Any], **more: Any) -> bool | None:
        if threading.get_ident() != own:
            return None if hook is None else hook(fn=fn, compile=compile, **more)
        kernel = Kernel(fn.jit_function, compile["specialization_data"])
        if (key := (id(kernel.function), kernel.wanted)) not in seen:
            seen.add(key)
            found.append(kernel)
        return True  # not to be compiled now

    def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **more: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=warmup or threading.get_ident() == own, **more)

    JITFunction.run, knobs.runtime.jit_cache_hook = only_compile, note
    try:
        yield found
    finally:
        JITFunction.run, knobs.runtime.jit_cache_hook = launch, hook


def compile_all(kernels: list[Kernel], device: torch.device) -> None:
    """Compile them, or load what Triton has on disk. One that fails is compiled again where it is launched, which tells why."""

    def one(kernel: Kernel) -> None:
        try:
            with torch.cuda.device(device):
                kernel.function.preload(kernel.wanted)
        except Exception as error:
            log.warning("%s cannot be compiled ahead: %s", kernel.function.__name__, str(error).partition("\n")[0])

    for kernel in kernels:
        _ = kernel.function.cache_key  # worked out once, not by two threads
    threads = max(1, min(_MOST_THREADS, os.cpu_count() or 1, len(kernels)))
    with ThreadPoolExecutor(threads, thread_name_prefix="stepwell-compiles") as pool:
        list(pool.map(one, kernels))


def compile_ahead(device: torch.device, rehearsals: list[Callable[[], None]], compiled: Callable[[], int]) -> None:
    """Rehearse and compile, one rehearsal after the other, until one needs no compiler: then the others' kernels are on disk, too.

    compiled   how many kernels have been compiled so far
    """
    for rehearse in rehearsals:
        try:
            with rehearsal() as kernels:
                rehearse()
        except RuntimeError as error:  # what torch raises; in earnest it is told to the user, or does not come
            log.warning("kernels are compiled one by one: %s", str(error).partition("\n")[0])
            return
        before = compiled()
        compile_all(kernels, device)
        if compiled() == before:
            return
        log.info("compiled %d kernels", compiled() - before)
