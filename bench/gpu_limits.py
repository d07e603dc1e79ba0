"""What a GPU gives without an engine: GB/s read and written by a device copy, TFLOP/s of products, GiB/s over the link. Some seconds.

python bench/gpu_limits.py                           ends with one line of JSON
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import torch


def milliseconds(work: Callable[[], object], count: int = 10) -> float:
    """Median of `count` runs, after three to warm up."""
    found = []
    for at in range(count + 3):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        work()
        ended.record()
        ended.synchronize()
        found += [began.elapsed_time(ended)] if at >= 3 else []
    return float(np.median(found))


def main() -> None:
    one = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    two = torch.empty_like(one)
    found = {"copy_gb_s": 2 * one.numel() / milliseconds(lambda: two.copy_(one)) / 1e6}
    for rows, deep, wide in ((16384, 2048, 8192), (16384, 2560, 18432), (8192, 8192, 8192)):
        a = torch.randn(rows, deep, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(wide, deep, device="cuda", dtype=torch.bfloat16).t()
        took = milliseconds(lambda a=a, b=b: a @ b)  # type: ignore[misc]
        found[f"tflop_s_{rows}x{deep}x{wide}"] = 2e-9 * rows * deep * wide / took
    host = torch.empty(2 << 30, dtype=torch.uint8, pin_memory=True)
    part, gib = one[: host.numel()], host.numel() / 2**30
    found["to_device_gib_s"] = 1e3 * gib / milliseconds(lambda: part.copy_(host, non_blocking=True), 5)
    found["to_host_gib_s"] = 1e3 * gib / milliseconds(lambda: host.copy_(part, non_blocking=True), 5)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
