"""How each admission ended, why its boundary is not further, and the counters derived from that."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepwell.cache.moves import DEVICE, EXTERNAL, Tier


class Reason(StrEnum):
    """Why a prompt was not resumed further. One for each admission; `complete` if nothing more could be reused."""

    COMPLETE = "complete"
    TOO_SHORT = "too_short"
    NOT_READ = "not_read"
    WITHIN_HIT = "tier_within_hit"
    NO_RUNG = "no_rung_above_hit"
    PARTIAL_CHUNK_NO_ROOM = "partial_chunk_no_room"
    COVERING_CHUNK_MISSING = "covering_chunk_missing"
    TOO_SMALL = "too_small"
    NO_ROOM = "no_room"
    OFF_CHUNK_GRID = "off_chunk_grid"
    LOAD_FAILED_KV = "load_failed(kv)"
    LOAD_FAILED_STATE = "load_failed(state)"


class Loss(StrEnum):
    """Why a token was recomputed."""

    NEW = "new"
    NO_RUNG = "no_rung"
    EVICTED_RUNG = "evicted_rung"
    EVICTED_KV = "evicted_kv"
    NO_ROOM = "no_room"
    PARTIAL_CHUNK = "partial_chunk"
    TOO_SMALL = "too_small"
    FAILED_LEG = "failed_leg"
    NOT_READ = "not_read"


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """One admission, settled. `device + host + disk + recomputed == prompt` tokens.

    boundary      where the request resumed; hit: deepest boundary the device alone could resume
    state_tier    where the rung's image came from; None at boundary 0
    lost          recomputed tokens by reason; sums to `recomputed`
    diverged_at   first token that differs from the closest cached prompt; None if the prompt only extends it
    coalesced     tokens below the boundary that another request computed while this one waited for it
    external      tokens that came from an external store
    legs          (tier read, "kv" or "image", whether all of it came) for each leg of the loads that were tried
    """

    request_id: str
    prompt: int
    device: int
    host: int
    disk: int
    recomputed: int
    boundary: int
    hit: int
    state_tier: Tier | None
    reason: Reason
    lost: tuple[tuple[Loss, int], ...] = ()
    diverged_at: int | None = None
    loaded: bool = False
    fallback_weakened: bool = False
    readmission: bool = False
    coalesced: int = 0
    external: int = 0
    legs: tuple[tuple[Tier, str, bool], ...] = ()

    @property
    def cached(self) -> int:
        """Prompt tokens that were not recomputed."""
        return self.device + self.host + self.disk + self.external

    def in_one_line(self) -> str:
        """The resume in one line, for a log or a response header."""
        text = f"resumed {self.cached:,} of {self.prompt:,} tokens: {self.device:,} device + {self.host:,} host + {self.disk:,} disk"
        if self.external:
            text += f" + {self.external:,} external"
        if self.diverged_at is not None:
            text += f"; diverged from the closest cached prompt at {self.diverged_at:,}"
        if self.coalesced:
            text += f"; waited for another request to compute {self.coalesced:,} of them"
        return f"{text}; {self.reason}"


@dataclass(slots=True)
class AdmissionCounts:
    """Sums over first admissions. Readmissions after a preemption are counted apart, since they are no cache hits of a prompt.

    legs  number of legs by (tier read, "kv" or "image", whether all of it came); those of readmissions too
    """

    admissions: int = 0
    readmissions: int = 0
    prompt: int = 0
    device: int = 0
    host: int = 0
    disk: int = 0
    external: int = 0
    recomputed: int = 0
    boundaries: int = 0
    state_device: int = 0
    state_tier: int = 0
    weakened: int = 0
    coalesced: int = 0
    coalesced_tokens: int = 0
    reasons: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    lost: dict[Loss, int] = field(default_factory=lambda: dict.fromkeys(Loss, 0))
    state_external: int = 0
    legs: dict[tuple[Tier, str, bool], int] = field(default_factory=dict)

    def add(self, outcome: AdmissionOutcome) -> None:
        for leg in outcome.legs:
            self.legs[leg] = self.legs.get(leg, 0) + 1
        if outcome.readmission:
            self.readmissions += 1
            return
        self.admissions += 1
        self.prompt += outcome.prompt
        self.device += outcome.device
        self.host += outcome.host
        self.disk += outcome.disk
        self.external += outcome.external
        self.recomputed += outcome.recomputed
        self.weakened += outcome.fallback_weakened
        self.coalesced += outcome.coalesced > 0
        self.coalesced_tokens += outcome.coalesced
        self.reasons[outcome.reason] += 1
        if outcome.loaded:
            self.boundaries += 1
            self.state_device += outcome.state_tier == DEVICE
            self.state_tier += outcome.state_tier != DEVICE
            self.state_external += outcome.state_tier == EXTERNAL
        for loss, tokens in outcome.lost:
            self.lost[loss] += tokens

    def joint_line(self) -> str:
        """How joint loads went, on one line."""
        skipped = [r for r in Reason if r != Reason.COMPLETE]
        rest = " ".join(f"{r.value}={self.reasons[r]}" for r in skipped)
        head = f"joint: boundaries={self.boundaries} (state_device={self.state_device} state_tier={self.state_tier})"
        return f"{head} | {rest} fallback_weakened={self.weakened}{self._loads()}"

    def _loads(self) -> str:
        """Legs by tier as completed/attempted, and how many states came from an external store. Empty without loads."""
        legs = sorted({(tier, what) for tier, what, _ in self.legs})
        done = {leg: self.legs.get((*leg, True), 0) for leg in legs}
        tried = {leg: done[leg] + self.legs.get((*leg, False), 0) for leg in legs}
        told = " ".join(f"{leg[0].name.lower()}({leg[1]})={done[leg]}/{tried[leg]}" for leg in legs)
        return f" | loads {told} state_external={self.state_external}" if legs else ""
