"""How a request would start. Pure: the same survey, room and rules give the same plan, and nothing changes.

A plan is a chain of options. The first is the aim; each later one is where the request resumes if the legs of the one before
fail. Everything in the chain is leased at commit, so falling back cannot fail and needs no further page.

    native store             0 ════ shared ════ K ──── leg ──── B ─── run ───▶
    whole chunks, K inside   0 ═ shared ═ S ─ private ─ K ─ leg ─ B ─ ⌈B⌉       S = ⌊K⌋ on the chunk grid
    resumed below K          0 ═════ shared, read only ═════ K                  [B, K) is recomputed for its state alone
    external store           0 ═ shared ═ S ─ private ─ K ─ leg ─ B             B on the chunk grid, if native tiers reach no chunk past K
                             0 ════ shared ════ K ──── leg ──── B               the same, if the store leaves out [S, K) as it unpacks
                             0 ════ shared ════ K ─ native ─ S ─ leg ─ B        S = ⌊union⌋ on the chunk grid, if they do
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stepwell.base.units import ceil_to, floor_to
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.external.query import ExternalHit
from stepwell.cache.moves import DEVICE, DISK, EXTERNAL, HOST, Tier
from stepwell.cache.reuse.outcome import Loss, Reason
from stepwell.cache.reuse.survey import ResumePoint, Survey, kv_nodes


@dataclass(frozen=True, slots=True)
class Source:
    """KV of tokens [start, end) is read from `tier`."""

    tier: Tier
    start: int
    end: int


class Option(NamedTuple):
    """One way to start.

    boundary  first token to be computed
    resume_point  the rung at `boundary` and the tier its image is read from; None at 0
    shared    tokens whose pages are referenced, never written
    leg       KV to be copied into private pages; they end at `leg_end` ≥ boundary
    external_hit  gives the state at `boundary` and perhaps the end of the leg; `resume_point` is None then
    """

    boundary: int
    shared: int
    resume_point: ResumePoint | None = None
    leg: tuple[Source, ...] = ()
    external_hit: ExternalHit | None = None

    @property
    def leg_end(self) -> int:
        return self.leg[-1].end if self.leg else self.shared

    @property
    def loads(self) -> bool:
        """Whether bytes must arrive from below the device first."""
        state = self.resume_point is not None and self.resume_point.tier != DEVICE
        return state or bool(self.leg) or self.external_hit is not None


class Room(NamedTuple):
    """Device pages: `idle` ones are cached and unleased, `reserved` ones promised to running prompts, `instant` ones free or clean."""

    total: int
    free: int
    idle: int
    reserved: int
    instant: int


class Plan(NamedTuple):
    """How a request starts. `options[0]` is the aim, the others its fallbacks; `need` pages hold [shared, prompt)."""

    epoch: int
    salt: str
    survey: Survey
    options: tuple[Option, ...]
    need: int
    hit: int
    reason: Reason
    skipped: int
    """The boundary that could be reached but was not taken, because of `reason`; 0 if there is none."""
    fallback_weakened: bool = False

    @property
    def aim(self) -> Option:
        return self.options[0]


@dataclass(frozen=True, slots=True)
class Wait:
    """No room now: `needed` pages wanted, `available` there. Try again when a request or a copy has ended."""

    reason: Reason
    needed: int
    available: int


def plan(
    found: Survey,
    salt: str,
    epoch: int,
    room: Room,
    rules: CacheConfig,
    costs: Costs,
    external_hit: ExternalHit | None = None,
) -> Plan | Wait:
    """The start with the least expected time to first token that fits now, from an external store where that gains enough. `Wait` if even
    the hit does not fit."""
    hit = found.hit
    base = hit.position if hit else 0
    aims, reason, skipped = _aims_and_reason(found, base, rules, costs)
    native = aims[0] if aims else None
    beyond = (
        None
        if external_hit is None
        else _external_option(external_hit, found, native.boundary if native else base, rules)
    )
    if beyond is not None:
        aims, reason, skipped = [beyond, *aims], Reason.COMPLETE, 0
    # every chain shares the resident KV, so all of them pin the same pages for it
    spendable = room.free + room.idle - room.reserved - pinned_kv(found, rules.geometry.block)
    for aim in aims:
        need = _need(aim, found.tokens, rules)
        weakest = (aim, Option(0, found.device))
        if need <= spendable - pinned_images(weakest):
            for weakened, chain in enumerate((*_chains(aim, native, found, hit), weakest)):
                if need <= spendable - pinned_images(chain):
                    return Plan(epoch, salt, found, chain, need, base, reason, skipped, weakened > 0)
        skipped = max(skipped, aim.boundary)
        reason = _no_room(aim, found)
    chain = (_hit_option(found, hit, room, rules),)
    need = _need(chain[0], found.tokens, rules)
    spendable -= pinned_images(chain)
    if need <= spendable:
        return Plan(epoch, salt, found, chain, need, base, reason, skipped)
    return Wait(Reason.NO_ROOM, need, spendable)


def plan_return(
    found: Survey, computed: int, salt: str, epoch: int, room: Room, rules: CacheConfig, costs: Costs
) -> Plan | Wait | None:
    """How a suspended request continues, whose live state after `computed` tokens and last partial block were kept: it needs the KV of
    its whole blocks, from whichever tiers have it. None if that is gone, or resuming at a rung is faster."""
    block = rules.geometry.block
    whole = floor_to(computed, block)
    # past that, its own pages count
    found = found._replace(device=min(found.device, whole))
    shared, hit = found.device, found.hit
    base = hit.position if hit else 0
    if found.union < whole or (rules.whole_chunks and shared < whole):
        return None
    aim = Option(whole, shared, None, _sources(found, shared, whole))
    if aim.loads and expected_seconds(aim, computed, rules, costs) >= costs.prefill_seconds(base, computed):
        return None
    need = _need(aim, found.tokens, rules) - (rules.geometry.pages_for(computed) - whole // block)
    spendable = room.free + room.idle - room.reserved - pinned_kv(found, rules.geometry.block)
    for weakened, chain in enumerate(_fallbacks(aim, found, hit)):
        if need <= spendable - pinned_images(chain):
            return Plan(epoch, salt, found, chain, need, base, Reason.COMPLETE, 0, weakened > 0)
    return Wait(Reason.NO_ROOM, need, spendable)


def _aims_and_reason(found: Survey, hit: int, rules: CacheConfig, costs: Costs) -> tuple[list[Option], Reason, int]:
    """Options above the hit, best first. If there are none: why, and the boundary that was passed over (0: none)."""
    above = found.resume_points_past(hit)
    if not above:
        last = floor_to(found.tokens - 1, rules.geometry.rung_grid)
        if last == 0:
            return [], Reason.TOO_SHORT, 0
        if hit >= min(last, found.matched):
            return [], Reason.COMPLETE, 0
        return [], Reason.WITHIN_HIT if found.union <= hit else Reason.NO_RUNG, 0
    options = [(f, _option(f, found, rules)) for f in above]
    usable = [o for _, o in options if o is not None]
    if not usable:
        return [], Reason.COVERING_CHUNK_MISSING, above[-1].position
    if rules.min_load_tokens is not None:
        taken = [o for o in usable if o.boundary - hit >= rules.min_load_tokens]
        ranked = sorted(taken, key=lambda o: -o.boundary)
    else:
        cold = costs.prefill_seconds(hit, found.tokens)
        timed = [(expected_seconds(o, found.tokens, rules, costs), -o.boundary, o) for o in usable]
        ranked = [o for seconds, _, o in sorted(timed, key=lambda t: t[:2]) if seconds < cold]
    if not ranked:
        return [], Reason.TOO_SMALL, usable[-1].boundary
    return ranked, Reason.COMPLETE, 0


def _option(resume_point: ResumePoint, found: Survey, rules: CacheConfig) -> Option | None:
    """How to resume at `resume_point`. None if the store lacks a chunk that the leg needs."""
    boundary = resume_point.position
    if boundary <= found.device:
        return Option(boundary, found.device, resume_point)
    if not rules.whole_chunks:
        return Option(boundary, found.device, resume_point, _sources(found, found.device, boundary))
    shared, end = floor_to(found.device, rules.chunk), ceil_to(boundary, rules.chunk)
    nodes = kv_nodes(found.path, shared, min(end, found.matched))
    if end > found.matched or not all(n.kv.has(HOST) for n, _, _ in nodes):
        return None
    return Option(boundary, shared, resume_point, (Source(HOST, shared, end),))


def _external_option(external_hit: ExternalHit, found: Survey, best: int, rules: CacheConfig) -> Option | None:
    """How to reach the boundary of `external_hit`. None if it gains too little over `best`, which native tiers reach, or if they have lost
    KV since the store was asked. The boundary is on the chunk grid, so no chunk past it is wanted."""
    boundary, chunk = external_hit.boundary, rules.external_chunk
    reach = found.device if rules.whole_chunks else found.union
    start = floor_to(reach, chunk)
    if (
        boundary - best < external_hit.least
        or boundary >= found.tokens
        or (start < external_hit.start and reach < boundary)
    ):
        return None
    if boundary <= reach:
        return Option(boundary, found.device, None, _sources(found, found.device, boundary), external_hit)
    if start > found.device:
        native = _sources(found, found.device, start)
        return Option(boundary, found.device, None, (*native, Source(EXTERNAL, start, boundary)), external_hit)
    shared = found.device if rules.external_drops else start
    return Option(boundary, shared, None, (Source(EXTERNAL, shared, boundary),), external_hit)


def _sources(found: Survey, start: int, end: int) -> tuple[Source, ...]:
    """KV of [start, end) by tier, neighbours of one tier joined."""
    out: list[Source] = []
    for node, a, b in kv_nodes(found.path, start, end):
        tier = node.kv.best(below=DEVICE)
        assert tier is not None, "the union reaches beyond what any tier holds"
        if out and out[-1].tier == tier:
            out[-1] = Source(tier, out[-1].start, b)
        else:
            out.append(Source(tier, a, b))
    return tuple(out)


def expected_seconds(option: Option, tokens: int, rules: CacheConfig, costs: Costs) -> float:
    """Expected seconds to the first token if a prompt of `tokens` tokens starts by `option`."""
    geometry = rules.geometry
    seconds = costs.prefill_seconds(option.boundary, tokens)
    for source in option.leg:
        pages = (source.end - source.start) // geometry.block
        seconds += pages * geometry.page_bytes / costs.speed(source.tier)
    if option.resume_point is not None or option.external_hit is not None:
        tier = EXTERNAL if option.resume_point is None else option.resume_point.tier
        seconds += geometry.image_pages * geometry.page_bytes / costs.speed(tier)
    return seconds + (costs.latency_s if option.loads else 0.0)


def _chains(aim: Option, native: Option | None, found: Survey, hit: ResumePoint | None) -> Iterator[tuple[Option, ...]]:
    """Chains for `aim`, strongest first. An aim in an external store falls back to the best native load first. That load uses the pages
    of the aim's leg, so it must not begin below what is shared."""
    if aim.external_hit is not None and native is not None and native.shared == found.device:
        yield from ((aim, *chain) for chain in _fallbacks(native, found, hit))
    yield from _fallbacks(aim, found, hit)


def _fallbacks(aim: Option, found: Survey, hit: ResumePoint | None) -> Iterator[tuple[Option, ...]]:
    """Chains for `aim`, strongest first, down to the deepest rung that no device page pays for.

    The pages that a chain leases are not available for the load, so a weaker chain may fit where a stronger does not.
    """
    shared = found.device
    cold = Option(0, shared)
    deepest_end = min(shared, aim.boundary - 1)
    resident = [resume_point for resume_point in found.resume_points if resume_point.position <= deepest_end]
    deepest = resident[-1:] if resident and (hit is None or resident[-1].position > hit.position) else []
    steps = [*deepest, *([hit] if hit else [])]
    yield (aim, *(Option(f.position, shared, f) for f in steps), cold)
    for resume_point in reversed(resident):
        copy = _below(resume_point) if resume_point.tier == DEVICE else resume_point
        if copy is not None:
            yield (aim, Option(copy.position, shared, copy), cold)
            return


def _below(resume_point: ResumePoint) -> ResumePoint | None:
    """The same rung, read from a copy whose lease takes no idle device page. None if there is none."""
    image = resume_point.rung.image
    if image.locks[DEVICE]:
        return resume_point
    for tier in (HOST, DISK):
        if image.has(tier):
            return ResumePoint(resume_point.position, resume_point.rung, tier)
    return None


def _hit_option(found: Survey, hit: ResumePoint | None, room: Room, rules: CacheConfig) -> Option:
    """The hit; position 0 with its KV if the image and the prompt would not fit even an empty pool."""
    if hit is not None:
        whole = rules.geometry.pages_for(found.tokens) + rules.geometry.image_pages
        if whole <= room.total or hit.rung.image.locks[DEVICE]:
            return Option(hit.position, found.device, hit)
    return Option(0, found.device)


def _need(option: Option, tokens: int, rules: CacheConfig) -> int:
    """Number of pages of the prompt that are not shared."""
    block = rules.geometry.block
    return max(rules.geometry.pages_for(tokens), option.leg_end // block) - option.shared // block


def pinned_kv(found: Survey, block: int) -> int:
    """Idle device pages that the lease on the resident KV of `found` takes. O(idle nodes)."""
    idle: int | None = None  # where the idle part begins; everything above a locked node is locked
    for node in reversed(found.path):
        if node.start < found.device:
            if node.kv.locks[DEVICE]:
                break
            idle = node.start
    return 0 if idle is None else (found.device - idle) // block


def pinned_images(chain: tuple[Option, ...]) -> int:
    """Idle device pages that the leases on the images of `chain` take."""
    resume_points = (o.resume_point for o in chain if o.resume_point is not None and o.resume_point.tier == DEVICE)
    images = {id(f.rung): f.rung.image for f in resume_points}
    return sum(image.size(DEVICE) for image in images.values() if not image.locks[DEVICE])


def _no_room(aim: Option, found: Survey) -> Reason:
    return Reason.PARTIAL_CHUNK_NO_ROOM if aim.shared < found.device and aim.leg else Reason.NO_ROOM


def losses(found: Survey, boundary: int, skipped: int, why: Loss, grid: int) -> tuple[tuple[Loss, int], ...]:
    """What each recomputed token was lost to; sums to `tokens − boundary`.

    boundary ─ skipped or failed load ─ no rung / evicted rung ─ evicted KV ─ new (and the tail past the last possible rung)
    """
    known = max(found.matched, skipped)  # an external store may know more than the tree does
    top = max(boundary, min(known, floor_to(max(found.tokens - 1, 0), grid)))
    lost = max((p for p in found.lost_rungs if p <= found.union), default=0) if found.lost_rungs else 0
    marks = (
        (why, min(max(skipped, boundary), top)),
        (Loss.EVICTED_RUNG, min(lost, top)),
        (Loss.NO_RUNG, min(found.union, top)),
        (Loss.EVICTED_KV, top),
        (Loss.NEW, found.tokens),
    )
    out: list[tuple[Loss, int]] = []
    at = boundary
    for loss, end in marks:
        if end > at:
            out.append((loss, end - at))
            at = end
    return tuple(out)
