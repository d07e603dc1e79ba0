"""The models of peers in `stepwell replay`, their directories alone, on the trace on which the peers themselves were measured.

    python bench/peer_models.py --harness DIR

`--harness` is the folder with `trace.py` that `bench/admission.py` takes, whose `--peers` run gives the figures to compare with:
token hit in the geometry of Qwen3-Next-80B (24,576 B of KV a token, 36 × 1.05 MiB of state), one request after another, by GiB of
device and host. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import runpy
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepwell.base.clock import VirtualClock
from stepwell.base.units import ceil_div
from stepwell.replay.cost import CostModel
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.job import Job, Keys, PeerCache
from stepwell.replay.peers.names import PEERS
from stepwell.replay.runner import Links

KV = 24_576
IMAGE = 36 * (32 * 128 * 128 * 2 + 8192 * 3 * 2)
SIZES = ((4, 0), (8, 0), (20, 0), (64, 0), (4, 16), (8, 20))
CHUNK = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", type=Path, required=True)
    requests = list(runpy.run_path(str(parser.parse_args().harness / "trace.py"))["gen"]())
    found = {}
    for name in PEERS:
        found[name] = {}
        for device, host in SIZES:
            sizes = MachineSizes(
                device_tokens=(device << 30) // KV,
                host_tokens=(host << 30) // KV,
                rung_tokens=ceil_div(IMAGE, KV),
                block=16,
                rung_grid=64,
                max_num_batched_tokens=CHUNK,
            )
            links = Links(VirtualClock(), CostModel(kv_bytes_per_token=KV))
            found[name][f"{device}+{host}"] = round(token_hit(PEERS[name].cache(sizes, KV, links), requests), 4)
        print(name, found[name], flush=True)
    print(json.dumps(found))


def token_hit(cache: PeerCache, requests: Sequence[dict[str, list[int]]]) -> float:
    """Share of prompt tokens that are served from the cache, one request after another."""
    keys, hit, total = Keys(cache.page), 0, 0
    for i, request in enumerate(requests):
        tokens = np.array(request["prompt"] + request["out"], np.int32)
        job = Job(str(i), keys.of(tokens), len(request["prompt"]), len(tokens))
        start = cache.admit(job)
        assert start is not None, "nothing else runs"
        if start.load is not None and start.load.missing is not None:
            start = cache.retreat(job, start, start.load.missing)
        hit, total = hit + start.boundary, total + job.prompt
        job.boundary = job.computed = start.boundary
        cache.computed(job)
        while job.computed < job.prompt:
            job.computed = min(job.prompt, cache.chunk_end(job, CHUNK))
            cache.computed(job)
        job.sampled, job.computed = job.total - job.prompt, job.total - 1
        cache.computed(job)
        cache.finish(job)
    return hit / total


if __name__ == "__main__":
    main()
