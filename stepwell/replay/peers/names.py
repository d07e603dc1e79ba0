"""The peers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import ConfigError
from stepwell.replay.cost import CostModel
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.atom import AtomCache
from stepwell.replay.peers.engine import PeerLoop, PeerMachine
from stepwell.replay.peers.job import Job, PeerCache
from stepwell.replay.peers.sglang import SglangCache
from stepwell.replay.peers.vllm import VllmCache
from stepwell.replay.runner import Links

Maker: TypeAlias = Callable[[MachineSizes, int, Links], PeerCache]
"""Sizes of memory, bytes of KV a token, where copies go."""


@dataclass(frozen=True, slots=True)
class Peer:
    """`said`: one line on it, for help."""

    said: str
    cache: Maker


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "vllm": Peer("vLLM: KV and states in large blocks, one LRU; host by its offloading connector", VllmCache),
        "sglang": Peer("SGLang: radix tree, KV and states in pools with an LRU each; host by HiCache", SglangCache),
        "atom-before": Peer(
            "ATOM with LMCache: loads from the 256-token grid alone, a failed one costs all",
            lambda sizes, kv, links: AtomCache(sizes, kv, links, unaligned=False),
        ),
        "atom-after": Peer(
            "ATOM with LMCache since its alignment change: loads from any hit, a failed one keeps it",
            lambda sizes, kv, links: AtomCache(sizes, kv, links, unaligned=True),
        ),
    }
)


def peer_machine(name: str, sizes: MachineSizes, costs: CostModel, failure_rate: float, seed: int) -> PeerMachine:
    """The engine of that peer. Raises ConfigError where the sizes do not suit it."""
    clock = VirtualClock()
    links = Links(clock, costs)
    cache = PEERS[name].cache(sizes, costs.kv_bytes_per_token, links)
    least = sizes.max_num_seqs - 1 + cache.page
    if sizes.max_num_batched_tokens < least:
        raise ConfigError(
            f"--max-num-batched-tokens {sizes.max_num_batched_tokens} must be at least {least} for --policy {name}:"
            f" a decode for all but one of --max-num-seqs {sizes.max_num_seqs}, and one page of {cache.page} prompt tokens"
        )
    if not cache.fits(Job("", [], prompt=1, total=1)):
        raise ConfigError(
            f"{sizes.device_tokens:,} tokens of device memory hold no request under --policy {name}, whose states take"
            f" {sizes.rung_tokens:,} each: raise --device-tokens"
        )
    return PeerMachine(PeerLoop(cache, sizes, costs, links, clock, failure_rate, seed), links, clock)
