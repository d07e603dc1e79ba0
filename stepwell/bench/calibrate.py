"""Measures what prefill, decode and copies cost with one model on this machine, for a profile that replays can use."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from stepwell.base.clock import Clock
from stepwell.base.errors import ConfigError, StepwellError, StoreError
from stepwell.base.geometry import Geometry
from stepwell.bench.fit import Decode, Prefill, fit_costs
from stepwell.bench.sizes import PASSES, Sizes
from stepwell.cache.moves import Extent, Move, Tier
from stepwell.engine.process.serving import ServedLoop
from stepwell.replay.cost import CostModel
from stepwell.sched.request import Finished, Request, SamplingParams, Tokens
from stepwell.store.copier import Copier, HostCopier
from stepwell.store.host import HostArena, pinned
from stepwell.store.mover import CopyMover

_RUN_PAGES = 16
"""Pages in one measured copy, at scattered places: what a chunk of 256 tokens is."""


def measure_compute(
    loop: ServedLoop, vocab: int, sizes: Sizes, base: CostModel, say: Callable[[str], None], clock: Clock
) -> CostModel:
    """`base` with the compute rates of this engine, as `clock` tells them; `say` hears what is being measured.

    Nothing is read from the cache or left in it. Prefill: the least of some rounds, as whatever disturbs only adds. Decode: the
    median of single steps, as a difference of two runs drowns in their noise.
    """
    draw = np.random.default_rng(0)
    names = (f"calibrate-{i}" for i in count())

    def submit(sequences: int, tokens: int, answer: int) -> None:
        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        for _ in range(sequences):
            prompt = draw.integers(0, vocab, tokens, dtype=np.int32)
            loop.submit(Request(next(names), prompt, params, read_cache=False, write_cache=False))

    def prefill(tokens: int) -> float:
        submit(1, tokens, 1)
        began = clock.now()
        _until(loop, Finished, 1)
        return clock.now() - began

    def decode(sequences: int, context: int) -> float:
        submit(sequences, context, 2 + PASSES + sequences)
        _until(loop, Tokens, sequences)
        took = []
        for _ in range(PASSES):
            began = clock.now()
            loop.step()
            took.append(clock.now() - began)
        _until(loop, Finished, sequences)
        return statistics.median(took)

    prefill(sizes.prompts[0])  # warm-up
    prefills = []
    for tokens in sizes.prompts:
        say(f"prefill of {tokens:,} tokens")
        prefills.append(Prefill(tokens, min(prefill(tokens) for _ in range(sizes.rounds))))
    before = loop.stats()
    decodes = []
    for sequences, context in sizes.decodes:
        say(f"decode of {sequences} over {context:,} tokens")
        decodes.append(Decode(sequences, context, min(decode(sequences, context) for _ in range(sizes.rounds))))
    after = loop.stats()
    overhead = (after.sched_seconds - before.sched_seconds) / max(1, after.steps - before.steps)
    return fit_costs(base, prefills, decodes, overhead)


def _until(loop: ServedLoop, kind: type[Tokens] | type[Finished], wanted: int) -> None:
    """Step until so many requests have had an event of this kind. Raises StepwellError where one ends badly."""
    heard: set[str] = set()
    while len(heard) < wanted:
        for event in loop.step():
            if isinstance(event, Finished) and event.reason != "length":
                raise StepwellError(f"a request of the calibration ended with {event.reason}: {event.message}")
            if isinstance(event, kind):
                heard.add(event.request_id)


def measure_copies(geometry: Geometry, device: str, sizes: Sizes, base: CostModel) -> CostModel:
    """`base` with the speeds of copies between device and host, of scattered pages."""
    pages = max(2 * _RUN_PAGES, sizes.copy_bytes // geometry.page_bytes)
    copier = _cuda_copier(pages, geometry.page_bytes) if device == "cuda" else _host_copier(pages, geometry.page_bytes)
    with CopyMover(copier) as mover:
        speeds = {
            source: statistics.median(_speed(mover, source, target, pages, geometry, i) for i in range(sizes.rounds))
            for source, target in ((Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DEVICE))
        }
    return replace(base, to_host=speeds[Tier.DEVICE], to_device=speeds[Tier.HOST])


def measure_disk(folder: Path | None, sizes: Sizes, base: CostModel) -> CostModel:
    """`base` with the speeds of a file in `folder` (None: the system's own for temporary files), written with fsync."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="stepwell-disk-") as file:
            data = np.random.default_rng(0).bytes(min(4 << 20, sizes.disk_bytes))
            pieces = max(1, sizes.disk_bytes // len(data))
            began = time.perf_counter()
            for _ in range(pieces):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            written = time.perf_counter() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # else the page cache would answer
            file.seek(0)
            began = time.perf_counter()
            while file.read(len(data)):
                pass
            read = time.perf_counter() - began
    except OSError as error:
        raise ConfigError(f"cannot measure the disk: {error}; give --disk-dir a folder that can be written") from error
    return replace(base, to_disk=pieces * len(data) / written, from_disk=pieces * len(data) / read)


def _speed(mover: CopyMover, source: Tier, target: Tier, pages: int, geometry: Geometry, seed: int) -> float:
    """Bytes/s of moves that copy every page once."""
    draw = np.random.default_rng(seed)
    one, two = (draw.permutation(pages).astype(np.int32) for _ in range(2))
    moves = [
        Move(i, "kv", Extent(source, one[i : i + _RUN_PAGES]), Extent(target, two[i : i + _RUN_PAGES]), 0)
        for i in range(0, pages, _RUN_PAGES)
    ]
    began = time.perf_counter()
    mover.start(moves)
    mover.drain()
    took = time.perf_counter() - began
    if bad := [report.error for report in mover.poll() if not report.ok]:
        raise StoreError(f"{len(bad)} of {len(moves)} copies failed, the first with: {bad[0]}")
    return pages * geometry.page_bytes / took


def _host_copier(pages: int, page_bytes: int) -> Copier:
    device, host = HostArena(pages, page_bytes, verify=False), HostArena(pages, page_bytes)
    every = np.arange(pages, dtype=np.int32)
    for arena in (device, host):
        arena.write(every, np.ones((pages, page_bytes), np.uint8))
    return HostCopier({Tier.DEVICE: device, Tier.HOST: host})


def _cuda_copier(pages: int, page_bytes: int) -> Copier:
    import torch

    from stepwell.store.streams import StreamCopier, cuda_lanes

    host = HostArena(pages, page_bytes, allocate=pinned)
    host.write(np.arange(pages, dtype=np.int32), np.ones((pages, page_bytes), np.uint8))
    device = torch.from_numpy(host.rows).cuda()
    up, down = cuda_lanes(device.device)
    return StreamCopier(device, host, up=up, down=down)
