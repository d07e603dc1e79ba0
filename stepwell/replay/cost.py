"""How long steps and copies take on a machine that is only imagined.

The numbers need not be right to the per cent: they set how requests overlap and how far copies lag, which is what a
cache feels.

The defaults are those of the profile `qwen3.5-397b-a17b-h200x4`, which states their sources (`stepwell/replay/profiles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from stepwell.base.errors import ConfigError
from stepwell.cache.config import Costs
from stepwell.cache.moves import Extent, Move, Tier
from stepwell.sched.step import Carry, Step, Work

_GIB = 2**30
_RATES = frozenset({"prefill_tokens_per_s", "kv_bytes_per_token", "to_device", "to_host", "from_disk", "to_disk"})


@dataclass(frozen=True, slots=True)
class CostModel:
    """Rates of one machine and model. Times in s, rates per s, bytes of one rank.

    prefill_tokens_per_s  the part of prefill that grows with its tokens
    attention_s_per_pair  for each (query, key) pair of tokens, on top; 0: none
    weights_s             reading the weights once; a pass takes at least this
    sequence_s            for each sequence of a pass
    kv_s_per_token        reading one token's KV in a decode
    overhead_s            fixed for each pass: scheduling, launches
    apart_s               on top, of a step in which prompts and decodes meet: they are passes of their own there; 0: one pass takes both
    load_s                on top, for each prompt of a step that came from below the device: what its copies take from the engine
    kv_bytes_per_token    sizes pages and images
    to_device, …          bytes/s from host to device, device to host, disk to host, host to disk
    copy_latency_s        fixed for each copy
    """

    prefill_tokens_per_s: float = 29_000.0
    attention_s_per_pair: float = 2.5e-10
    weights_s: float = 0.012
    sequence_s: float = 50e-6
    kv_s_per_token: float = 2.2e-9
    overhead_s: float = 0.002
    apart_s: float = 0.0
    load_s: float = 0.0
    kv_bytes_per_token: int = 7_800
    to_device: float = 47.5 * _GIB
    to_host: float = 49.7 * _GIB
    from_disk: float = 3.0e9
    to_disk: float = 0.4e9
    copy_latency_s: float = 50e-6

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value >= 0 or (name in _RATES and value == 0):
                raise ConfigError(f"cost {name} must be {'above' if name in _RATES else 'at least'} 0, not {value}")

    def step_seconds(self, step: Step, passes: int = 1) -> float:
        """Seconds of a step; with `passes` > 1, of so many in a row that decode: this one and those that follow from it."""
        decoding = step.decodes
        tokens = len(decoding)
        other = self.overhead_s + self.sequence_s * len(step)
        other += self.kv_s_per_token * (int(decoding.starts.sum()) + tokens * (1 + (passes - 1) / 2))
        carried = tokens
        for work in step.parts:
            count = len(work.tokens)
            if decodes(work):
                other += self.kv_s_per_token * (work.start + count + (passes - 1) / 2)
                carried += 1
            else:
                other += self.attention_s_per_pair * count * (work.start + count / 2)
                other += self.load_s * came_from_below(work)
            tokens += count
        if 0 < carried < len(step):
            other += self.apart_s
        return passes * (other + max(self.weights_s, tokens / self.prefill_tokens_per_s))

    def weighed(self) -> Costs:
        """What an engine on this machine weighs."""
        return Costs(
            self.prefill_tokens_per_s,
            (float("inf"), self.to_device, self.from_disk),
            self.copy_latency_s,
            self.attention_s_per_pair,
            prompt_step_s=self.overhead_s,
        )

    def decode_seconds(self, sequences: int, context: int) -> float:
        """Seconds of one decode pass over `sequences` with `context` tokens of KV between them."""
        floor = max(self.weights_s, sequences / self.prefill_tokens_per_s)
        return self.overhead_s + self.sequence_s * sequences + self.kv_s_per_token * context + floor

    def pass_seconds(self, prefills: Sequence[tuple[int, int]], sequences: int, context: int) -> float:
        """Seconds of one pass over (start, tokens) of prompts beside `sequences` decodes with `context` tokens between them."""
        tokens = sequences + sum(count for _, count in prefills)
        other = self.overhead_s + self.sequence_s * (sequences + len(prefills)) + self.kv_s_per_token * context
        other += self.attention_s_per_pair * sum(count * (start + count / 2) for start, count in prefills)
        if prefills and sequences:
            other += self.apart_s
        return other + max(self.weights_s, tokens / self.prefill_tokens_per_s)

    def copy_seconds(self, move: Move, page_bytes: int) -> float:
        """Seconds of one copy that has its direction to itself. A copy within a tier costs its latency alone."""
        return self.way_seconds(direction(move), len(move.source.slots) * page_bytes)

    def way_seconds(self, way: tuple[Tier, Tier], size: int) -> float:
        """Seconds of a copy of `size` bytes (from, to) that has its direction to itself."""
        return self.copy_latency_s + size / self._speed(*way)

    def _speed(self, source: Tier, target: Tier) -> float:
        if source == target:
            return float("inf")
        if Tier.DISK in (source, target):
            return self.from_disk if source == Tier.DISK else self.to_disk
        return self.to_device if target == Tier.DEVICE else self.to_host


def decodes(work: Work) -> bool:
    """A work that carries one sampled token on, as against one that computes a piece of a prompt."""
    return len(work.tokens) == 1 and work.sample is not None and work.sample.index > 0


def came_from_below(work: Work) -> bool:
    """The first piece of a prompt whose state was loaded straight into its live slot."""
    return work.start > 0 and work.known == 0 and isinstance(work.state, Carry)


def direction(move: Move) -> tuple[Tier, Tier]:
    """(from, to); a live state is on the device."""
    return move.source.tier, move.target.tier if isinstance(move.target, Extent) else Tier.DEVICE
