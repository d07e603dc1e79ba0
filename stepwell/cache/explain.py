"""What a prompt would get if it came now, as plain data: the survey, the plan, and how its admission would end. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.base.geometry import Ints
from stepwell.cache.admission import outcome_of
from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.cache.plan import Option, Plan
from stepwell.cache.survey import Survey


@dataclass(frozen=True, slots=True)
class Start:
    """One option of a plan.

    state  tier of the image; None at boundary 0
    legs   KV to be copied, as (tier, first token, end)
    """

    boundary: int
    shared: int
    state: str | None
    legs: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a prompt would be resumed where it would.

    matched        tokens of the prompt that are known, cached or not
    device, union  KV without a gap: on the device, in all tiers together
    hit            what the device alone could resume
    rungs          where the state could be had, as (position, fastest tier)
    lost_rungs     where it once could
    starts         the aim, then what it would fall back on; empty where the request would wait for room
    pages_needed   beyond what is shared; pages_available is told where the request would wait
    outcome        how the admission would end if nothing failed
    waits_for      tokens that another request is computing and that it would wait for; None where it would not
    """

    tokens: int
    matched: int
    device: int
    union: int
    hit: int
    rungs: tuple[tuple[int, str], ...]
    lost_rungs: tuple[int, ...]
    diverged_at: int | None
    starts: tuple[Start, ...]
    pages_needed: int
    pages_available: int | None
    outcome: AdmissionOutcome | None
    waits_for: int | None = None


def explain(directory: Directory, salt: str, prompt: Ints, costs: Costs, read: bool = True) -> Explanation:
    """Answer for `prompt` under `salt` at this moment."""
    answer = directory.plan(salt, prompt, costs, read)
    found = answer.survey if isinstance(answer, Plan) else directory.survey(salt, prompt)
    starts: tuple[Start, ...] = ()
    outcome = None
    if isinstance(answer, Plan):
        starts = tuple(_start(option) for option in answer.options)
        grid = directory.config.geometry.rung_grid
        outcome = outcome_of(answer, "", grid, 0, answer.reason, answer.skipped)
        needed, available = answer.need, None
    else:
        needed, available = answer.needed, answer.available
    return Explanation(
        tokens=found.tokens,
        matched=found.matched,
        device=found.device,
        union=found.union,
        hit=_hit(found),
        rungs=tuple((f.position, _name(f.tier)) for f in found.footholds),
        lost_rungs=found.lost_rungs,
        diverged_at=found.diverged_at,
        starts=starts,
        pages_needed=needed,
        pages_available=available,
        outcome=outcome,
    )


def _hit(found: Survey) -> int:
    return found.hit.position if found.hit is not None else 0


def _start(option: Option) -> Start:
    state = None if option.foothold is None else _name(option.foothold.tier)
    legs = tuple((_name(source.tier), source.start, source.end) for source in option.leg)
    return Start(option.boundary, option.shared, state, legs)


def _name(tier: Tier) -> str:
    return tier.name.lower()
