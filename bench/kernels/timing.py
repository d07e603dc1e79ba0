"""Times in CUDA graphs. Each call of a graph works on memory of its own, more in all than the cache holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

COLD_BYTES = 256 << 20
"""What the calls of one graph touch together: four times the level-2 cache of an H200."""


def sets(bytes_each: float, most: int = 96) -> int:
    """How many calls with memory of their own leave the cache cold."""
    return int(min(most, max(8, COLD_BYTES // max(1, bytes_each) + 1)))


def time_us(calls: Sequence[Callable[[], object]], replays: int = 7) -> float:
    """Median time of one call, in µs, from replays of a graph of all of them."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[replays // 2] * 1e3 / len(calls)


def copy_bytes_per_us() -> float:
    """Bytes read and written by a large copy on the device, per µs. A kernel: a graph's own copies are slower."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    return 8 * source.numel() / time_us([lambda: torch.neg(source, out=target)] * 4)
