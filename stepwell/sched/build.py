"""The next step: every decode first, then prompts, oldest first, up to the token budget.

Prefill is cut on the rung grid, so that a resume at a rung repeats exactly the segments of a cold run. Pages of prompts were
promised at admission; an answer that grows may preempt the youngest request, never the oldest. Images for rungs are best
effort: they take what is free or clean, never what is promised, and preempt nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.shed import demote, in_flight, secure
from stepwell.cache.tree import RungKind
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Job, Running
from stepwell.sched.queues import Queues, enqueue
from stepwell.sched.step import Cut, Sample, Score, Step, Work
from stepwell.sched.suspend import keep, let_go_all


@dataclass(frozen=True, slots=True)
class Share:
    """One request's part of a step: it computes up to `end` and leaves `rungs` (position, kind, pages)."""

    running: Running
    end: int
    rungs: tuple[tuple[int, RungKind, Ints], ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A step, and whose work it is, aligned with `step.works`."""

    step: Step
    shares: tuple[Share, ...]


class _Pages(Enum):
    TAKEN = auto()
    COMING = auto()  # a copy in flight will make room
    NONE = auto()


def build(queues: Queues, directory: Directory, config: SchedConfig, max_repeat: int = 1) -> Built | None:
    """The next step, or None where nothing can be computed now. Takes the pages it writes."""
    shares: list[Share] = []
    turns = list(queues.running)
    decodes = [running for running in turns if running.remaining == 1]
    repeat = _repeat(queues, decodes, directory, config, max_repeat) if 0 < len(decodes) == len(turns) else 1
    for place, running in enumerate(turns):
        if place >= len(queues.running):
            break  # only the youngest are preempted, so that all from here on have been
        if running.remaining == 1 and _grow_or_preempt(queues, directory, running, running.computed + repeat):
            shares.append(_share(queues, directory, config, running, running.computed + repeat))
    budget = config.max_num_batched_tokens - len(shares)
    for running in [running for running in queues.running if running.remaining > 1]:
        end = _chunk_end(running, budget, directory.config.geometry.rung_grid)
        if end <= running.computed:
            break
        images = len(_cuts(directory, config, running, end)) * directory.config.geometry.image_pages
        if _claim(queues, directory, running, end, images) is _Pages.TAKEN:
            budget -= end - running.computed
            shares.append(_share(queues, directory, config, running, end))
    if not shares:
        return None
    return Built(Step(tuple(_work(s) for s in shares), repeat), tuple(shares))


def _repeat(queues: Queues, decodes: list[Running], directory: Directory, config: SchedConfig, most: int) -> int:
    """Decode passes to take at once: up to the first answer that must end, as many as fit without preempting."""
    copies_matter = queues.parked or queues.moves or (queues.waiting and directory.in_flight)
    if most == 1 or copies_matter:
        return 1
    steps = min(most, min(_passes(r, config) for r in decodes))
    room = directory.room()
    spendable = room.instant - room.reserved
    geometry = directory.config.geometry
    while steps > 1:
        needed = sum(max(0, geometry.pages_for(r.computed + steps) - len(r.table)) for r in decodes)
        if needed + len(decodes) * geometry.image_pages <= spendable:
            break
        steps //= 2
    return max(1, steps)


def _passes(running: Running, config: SchedConfig) -> int:
    """Decode passes until the answer must end. One that a token may end goes to its next rolling rung, and leaves it, at most."""
    job, every = running.job, config.decode_rung_tokens
    left = job.limit - job.tokens.count
    may_stop = job.request.params.stop_token_ids or (config.eos and not job.request.params.ignore_eos)
    return min(left, every - running.computed % every) if may_stop else left


def _chunk_end(running: Running, budget: int, grid: int) -> int:
    """Where this step's part of a prompt ends: its end, or the last grid boundary that the budget reaches."""
    if running.remaining <= budget:
        return running.computed + running.remaining
    return floor_to(running.computed + budget, grid)


def _claim(queues: Queues, directory: Directory, running: Running, end: int, images: int = 0) -> _Pages:
    """Take the pages for tokens up to `end`; wait for copies down that make room for them and for `images` pages of rungs."""
    table = running.table
    count = max(0, directory.config.geometry.pages_for(end) - len(table))
    if count == 0 and images == 0:
        return _Pages.TAKEN
    room = directory.room()
    spendable = room.free + room.idle - room.reserved + min(count, table.promised)
    if count > spendable:
        # a copy from host to disk makes no room on the device, and may take long
        return _Pages.COMING if in_flight(directory, Tier.DEVICE) else _Pages.NONE
    wanted = min(count + images, spendable)
    if not secure(directory, wanted):
        queues.moves.extend(demote(directory, wanted - directory.room().instant))
        if directory.in_flight:
            return _Pages.COMING
        secure(directory, count, force=True)
    directory.grow(table, count)
    return _Pages.TAKEN


def _grow_or_preempt(queues: Queues, directory: Directory, running: Running, end: int) -> bool:
    """Pages for one more token, at the price of the youngest requests if need be; False: not in this step."""
    while True:
        pages = _claim(queues, directory, running, end)
        if pages is not _Pages.NONE:
            return pages is _Pages.TAKEN
        victim = queues.running[-1]
        if victim is queues.running[0]:
            if let_go_all(queues, directory):
                continue
            loads = queues.parked or queues.draining or directory.in_flight
            assert loads, "the oldest request alone fits: its length was clamped to the pool"
            return False
        preempt(queues, directory, victim)
        if victim is running:
            return False


def preempt(queues: Queues, directory: Directory, victim: Running) -> None:
    """Back to waiting. What it computed is published already; it goes on from there if it can, and else from its last rung."""
    kept = keep(directory, victim)
    _release(queues, directory, victim)
    if kept is None:
        queues.slots.append(victim.slot)
    queues.preemptions += 1
    enqueue(queues, victim.job, kept)


def release(queues: Queues, directory: Directory, running: Running) -> None:
    """Let go of all that a running request holds."""
    _release(queues, directory, running)
    queues.slots.append(running.slot)


def _release(queues: Queues, directory: Directory, running: Running) -> None:
    queues.running.remove(running)
    if running.image is not None:
        directory.release(running.image)
    directory.release(running.path)
    directory.close(running.table)


def _share(queues: Queues, directory: Directory, config: SchedConfig, running: Running, end: int) -> Share:
    """Decide the rungs of this part and take their pages."""
    rungs: list[tuple[int, RungKind, Ints]] = []
    for position, kind in _cuts(directory, config, running, end):
        pages = _image_pages(directory)
        if pages is None:
            queues.rungs_skipped += 1
        else:
            queues.rungs_left += 1
            rungs.append((position, kind, pages))
    return Share(running, end, tuple(rungs))


def _cuts(directory: Directory, config: SchedConfig, running: Running, end: int) -> list[tuple[int, RungKind]]:
    """Prompt rungs within this part, and the rolling one at its last suitable boundary."""
    if not config.cache or not running.job.request.write_cache:
        return []
    start, prompt = running.computed, running.remaining > 1
    cuts = [(p, kind) for p, kind in running.rungs if start < p <= end] if running.rungs else []
    rolling = floor_to(end, directory.config.geometry.rung_grid if prompt else config.decode_rung_tokens)
    in_answer = not prompt or end < running.job.tokens.count
    if rolling > start and in_answer and all(p != rolling for p, _ in cuts):
        cuts.append((rolling, RungKind.ROLLING))
    return sorted(cuts)


def _image_pages(directory: Directory) -> Ints | None:
    """Pages for one image, if that costs no one anything that was promised or could still be copied down."""
    count = directory.config.geometry.image_pages
    room = directory.room()
    if room.free + room.idle - room.reserved < count or not secure(directory, count):
        return None
    directory.epoch += 1
    return directory.pools[Tier.DEVICE].take(count)


def _work(share: Share) -> Work:
    running, job = share.running, share.running.job
    samples = share.end >= job.tokens.count
    return Work(
        request_id=job.request.id,
        slot=running.slot,
        root=job.root,
        start=running.computed,
        tokens=job.tokens.view[running.computed : share.end],
        pages=running.table.pages,
        write_from=running.shared,
        state=running.start,
        cuts=tuple([Cut(position, pages) for position, _, pages in share.rungs]),
        sample=_sample(job) if samples else None,
        score=_score(job, running.computed, share.end),
    )


def _sample(job: Job) -> Sample:
    params = job.request.params
    history = job.tokens.view.copy() if params.looks_back else None
    return Sample(params, job.generated, history, job.keeps_logits)


def _score(job: Job, start: int, end: int) -> Score | None:
    """The prompt tokens whose log-probabilities this part of the prompt yields, if they are wanted."""
    top = job.request.params.prompt_logprobs
    if top is None:
        return None
    targets = job.request.prompt[start + 1 : end + 1]
    return Score(targets, top) if len(targets) else None
