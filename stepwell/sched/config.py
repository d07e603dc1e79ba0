"""The scheduler's rules."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.base.units import ceil_to, floor_to


@dataclass(frozen=True, slots=True)
class SchedConfig:
    """Rules that never change while the engine runs.

    max_num_seqs             requests that hold a live state: running, or waiting for a load
    max_num_batched_tokens   tokens a step may compute
    max_model_len            prompt and answer together
    decode_rung_tokens       tokens from one rolling rung of an answer to the next
    eos                      tokens that end an answer
    vocab                    token ids are below this; 0: not checked
    cache                    read prompts from the cache, and publish to it
    load_timeout             seconds without a report after which a request gives its load up; 0: never
    coalesce                 a request waits for a prefix that another is computing if that is faster
    priority_ageing          seconds of waiting that count as one step of priority
    fair_salts               salts that wait at one priority take turns, by the work of their prompts
    async_scheduling         build and launch a step while the one before computes
    max_step_s               most seconds that a step with decodes should take; 0: no limit
    deterministic            use no measured times: costs stay as given
    records_a_turn           most records of an earlier process that one turn looks up on disk for waiting requests
    lookup_timeout           seconds to wait for the answer of an external store
    external_lease_s         seconds that a hit in an external store is leased for a waiting request; then the store is asked again
    waypoint_tokens          tokens from one waypoint of an answer to the next (`is_waypoint`)
    drafts                   most tokens that the runner drafts for each answer and step; 0: none
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1 << 20
    decode_rung_tokens: int = 16
    eos: tuple[int, ...] = ()
    vocab: int = 0
    cache: bool = True
    load_timeout: float = 0.0
    coalesce: bool = True
    priority_ageing: float = 10.0
    fair_salts: bool = False
    async_scheduling: bool = False
    max_step_s: float = 0.0
    deterministic: bool = False
    records_a_turn: int = 64
    drafts: int = 0
    waypoint_tokens: int = 1024
    lookup_timeout: float = 2.0
    external_lease_s: float = 30.0

    def is_waypoint(self, position: int) -> bool:
        """True if a rolling rung at `position` stays: it is the first in its stretch of `waypoint_tokens`."""
        return position % self.waypoint_tokens < self.decode_rung_tokens

    def next_waypoint(self, position: int) -> int:
        """Position of the first waypoint behind `position`."""
        start = floor_to(position, self.waypoint_tokens)
        first = ceil_to(start, self.decode_rung_tokens)
        return first if first > position else ceil_to(start + self.waypoint_tokens, self.decode_rung_tokens)

    def validate(self, geometry: Geometry) -> None:
        """Raise ConfigError where a step could not make progress."""
        if self.max_num_seqs < 1:
            raise ConfigError(f"--max-num-seqs must be at least 1, not {self.max_num_seqs}")
        if not 0 <= self.drafts < geometry.block:
            raise ConfigError(
                f"num_speculative_tokens must be from 0 to {geometry.block - 1} with --block-size {geometry.block}, not {self.drafts}"
            )
        least = (self.max_num_seqs - 1) * (1 + self.drafts) + geometry.rung_grid
        if self.max_num_batched_tokens < least:
            drafts = f", with {self.drafts} drafts," if self.drafts else ""
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} must be at least {least}: a decode{drafts} for each of "
                f"--max-num-seqs {self.max_num_seqs} and one --rung-grid of {geometry.rung_grid} prompt tokens"
            )
        if self.decode_rung_tokens < geometry.block or self.decode_rung_tokens % geometry.block:
            raise ConfigError(
                f"--decode-rung-tokens {self.decode_rung_tokens} must be a multiple of --block-size {geometry.block}"
            )
        if not 0 <= self.max_step_s < float("inf"):
            raise ConfigError(
                f"--max-step-ms must be a number of milliseconds, or 0 for any, not {1e3 * self.max_step_s}"
            )
        if self.load_timeout < 0:
            raise ConfigError(f"--load-timeout must be at least 0, not {self.load_timeout}")
        if not 0 < self.priority_ageing < float("inf"):
            raise ConfigError(f"--priority-ageing must be a number of seconds above 0, not {self.priority_ageing}")
        if self.max_model_len < 2:
            raise ConfigError(f"--max-model-len must be at least 2, not {self.max_model_len}")
