"""The next step: every decode first, drafts behind it, then prompts, oldest first, up to the token budget.

Prefill is cut on the rung grid, so that a resume at a rung repeats exactly the segments of a cold run. Pages of prompts were
promised at admission; an answer that grows may preempt the youngest request, never the oldest. Images for rungs are best
effort: they take what is free or clean, never what is promised, and preempt nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.room import make_room
from stepwell.cache.shed import secure
from stepwell.cache.tree import RungKind
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import drafts_of, is_idle
from stepwell.sched.job import Job, Leaving, Running
from stepwell.sched.queues import Queues, enqueue
from stepwell.sched.step import NO_DECODES, Carry, Cut, Decodes, Guidance, Sample, Score, Step, Unguided, Work
from stepwell.sched.suspend import keep, let_go_all

UNGUIDED = Unguided()
LEAST_SHARE = 0.25
"""Of the time of a step that is left to prompts whatever decodes are thought to take."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One request's part of a step: it computes up to `end` and leaves `rungs` (position, kind, pages).

    The last `drafts` tokens up to there are guesses: how far it got is known once the step has been collected.
    """

    running: Running
    end: int
    rungs: tuple[tuple[int, RungKind, Ints], ...]
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Built:
    """A step, and whose work it is, aligned with `step.works`."""

    step: Step
    shares: tuple[Share, ...]


class _Pages(Enum):
    TAKEN = auto()
    COMING = auto()  # a copy in flight will make room
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Drain:
    """Somebody has to be preempted: collect the launched step first. It may end a request, and the victim's state is not whole before."""


def build(
    queues: Queues,
    directory: Directory,
    config: SchedConfig,
    costs: Costs,
    now: float,
    in_flight: bool = False,
    guidance: Guidance = UNGUIDED,
) -> Built | Drain | None:
    """The next step, to be launched at once, or None where nothing can be computed now. Takes the pages it writes.

    Beside decodes, prompts are computed for as long as `costs` say that the step stays within `max_step_s`, one grid at least.

    `in_flight`: a launched step has not been collected yet. What it is going to draw is decoded without being known.
    `guidance`: who is held to a grammar joins once it is ready; nobody else waits for that.
    """
    maker = _Maker(queues, directory, costs, now)
    growing: list[Running] = []
    block = directory.tree.block
    for place, running in enumerate(list(queues.running)):
        if place >= len(queues.running):
            break  # only the youngest are preempted, so that all from here on have been
        if not _can_decode(config, running) or _waits(running, guidance):
            continue
        if running.launched < len(running.table) * block:
            growing.append(running)  # nearly every decode has room on its last page
            continue
        grown = _grow_or_preempt(maker, running, running.launched + 1, in_flight)
        if isinstance(grown, Drain):
            return grown
        if grown:
            growing.append(running)
    shares = [_decode(queues, directory, config, running) for running in growing]
    budget = config.max_num_batched_tokens - sum(1 + share.drafts for share in shares)
    grid = directory.config.geometry.rung_grid
    seconds = inf
    if shares and config.max_step_s:
        left = config.max_step_s - costs.decode_s - costs.prompt_step_s
        seconds = max(left, config.max_step_s * LEAST_SHARE)  # a speed that was misjudged once must not starve prompts
    for running in [running for running in queues.running if running.remaining > 1]:
        end = _chunk_end(running, budget, grid)
        if seconds < inf:
            least = 0 if len(shares) > len(growing) else grid
            end = _in_time(running, end, max(least, costs.prefill_within(running.launched, seconds)), grid)
        if end <= running.launched:
            break
        if end == running.drawn and _waits(running, guidance):
            continue
        images = len(_cuts(directory, config, running, end)) * directory.config.geometry.image_pages
        if _claim(maker, running, end, images) is _Pages.TAKEN:
            budget -= end - running.launched
            seconds -= costs.prefill_seconds(running.launched, end)
            shares.append(share_of(queues, directory, config, running, end))
    return built_of(shares) if shares else None


def _decode(queues: Queues, directory: Directory, config: SchedConfig, running: Running) -> Share:
    """The next token of an answer, or the last of a prompt, and what is drafted behind it."""
    end = running.launched + 1
    if end % config.decode_rung_tokens and not running.rungs and not config.drafts:
        return Share(running, end, ())  # nearly every decode: it leaves no rung
    return share_of(queues, directory, config, running, end, drafts_of(directory, config, running))


def _can_decode(config: SchedConfig, running: Running) -> bool:
    """Whether one more token can be computed: of an answer at its limit none is left to draw, and one whose next token depends on the
    last one in ways that the model does not know of, or that may have come by several tokens further, waits until that is collected."""
    if running.remaining != 1:
        return False
    job = running.job
    return running.drawn < job.limit and (running.drawn == job.tokens.count or not (job.looks_back or config.drafts))


def _waits(running: Running, guidance: Guidance) -> bool:
    """Whether the token that it would draw next is held to a grammar, and it is not known yet which tokens that allows."""
    job = running.job
    if not job.request.params.grammar:
        return False
    return not guidance.ready(job.request.id, job.request.params, job.answer)


def guide(built: Built, guidance: Guidance) -> None:
    """Begin what the next tokens of a collected step's requests depend on: they may be asked for right away."""
    for share in built.shares:
        job = share.running.job
        if job.request.params.grammar and share.running.drawn == job.tokens.count:
            guidance.begin(job.request.id, job.request.params, job.answer)


def built_of(shares: Sequence[Share]) -> Built:
    """The step of these shares. From here on it counts as launched."""
    decoding: list[Share] = []
    others: list[Share] = []
    for share in shares:
        (others if share.drafts or not share.running.goes_on else decoding).append(share)
    step = Step(tuple([_work(share) for share in others]), _decodes(decoding) if decoding else NO_DECODES)
    for share in shares:
        running = share.running
        running.launched, running.start = share.end, Carry()
        if share.end >= running.drawn:
            running.drawn = share.end + 1
    return Built(step, tuple(decoding + others))


def _decodes(shares: list[Share]) -> Decodes:
    runs = [share.running for share in shares]
    jobs = [running.job for running in runs]
    tables = [running.table.name() for running in runs]
    starts = [running.launched for running in runs]
    lengths = [len(job.request.prompt) for job in jobs]
    return Decodes(
        names=tuple([job.request.id for job in jobs]),
        slots=np.array([running.slot for running in runs], np.int32),
        roots=np.array([job.root for job in jobs], np.int64),
        starts=np.array(starts, np.int32),
        tokens=np.array([job.tokens.at(start) for job, start in zip(jobs, starts, strict=True)], np.int32),
        tables=tuple([pages for pages, _ in tables]),
        known=np.array([known for _, known in tables], np.int32),
        params=tuple([job.request.params for job in jobs]),
        indices=np.array(starts, np.int32) + 1 - np.array(lengths, np.int32),
        histories=tuple([(i, j.tokens.view) for i, j in enumerate(jobs) if j.looks_back]),
        cuts=tuple([(i, Cut(p, pages)) for i, share in enumerate(shares) for p, _, pages in share.rungs]),
    )


def _chunk_end(running: Running, budget: int, grid: int) -> int:
    """Where this step's part of a prompt ends: its end, or the last grid boundary that the budget reaches."""
    if running.remaining <= budget:
        return running.drawn
    return floor_to(running.launched + budget, grid)


def _in_time(running: Running, end: int, count: int, grid: int) -> int:
    """Where a part of at most `count` tokens that would end at `end` ends: there, or at the last grid boundary within."""
    return end if end - running.launched <= count else floor_to(running.launched + count, grid)


@dataclass(frozen=True, slots=True)
class _Maker:
    """What it takes to make room for one step."""

    queues: Queues
    directory: Directory
    costs: Costs
    now: float

    def make(self, pages: int) -> bool:
        """Begin what lets `pages` pages be taken; whether anything is coming."""
        making = make_room(self.directory, pages, self.costs, self.now)
        self.queues.moves.extend(making.moves)
        return making.coming


def _claim(maker: _Maker, running: Running, end: int, images: int = 0) -> _Pages:
    """Take the pages for tokens up to `end`; wait for copies down that make room for them and for `images` pages of rungs."""
    directory, table = maker.directory, running.table
    count = max(0, directory.config.geometry.pages_for(end) - len(table))
    if count == 0 and images == 0:
        return _Pages.TAKEN
    room = directory.room()
    spendable = room.free + room.idle - room.reserved + min(count, table.promised)
    if count > spendable:
        # a copy from host to disk makes no room on the device, and may take long
        return _Pages.COMING if directory.coming(Tier.DEVICE) else _Pages.NONE
    wanted = min(count + images, spendable)
    if not secure(directory, wanted):
        if maker.make(wanted - directory.room().instant):
            return _Pages.COMING
        secure(directory, count, force=True)
    directory.grow(table, count)
    return _Pages.TAKEN


def grow(directory: Directory, running: Running, end: int) -> bool:
    """Take the pages for tokens up to `end`, if they are free or clean."""
    count = max(0, directory.config.geometry.pages_for(end) - len(running.table))
    if not secure(directory, count):
        return False
    directory.grow(running.table, count)
    return True


def _grow_or_preempt(maker: _Maker, running: Running, end: int, in_flight: bool) -> bool | Drain:
    """Pages for one more token, at the price of the youngest requests if need be; False: not in this step."""
    queues, directory = maker.queues, maker.directory
    while True:
        pages = _claim(maker, running, end)
        if pages is not _Pages.NONE:
            return pages is _Pages.TAKEN
        if in_flight:
            return Drain()
        victim = queues.running[-1]
        if victim is queues.running[0]:
            if let_go_all(queues, directory):
                continue
            copies = queues.parked or queues.draining or directory.in_flight or directory.overdue
            assert copies, "the oldest request alone fits: its length was clamped to the pool"
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
    """Take out a request that has ended. All that it holds is let go: at once, or with the last launched step that names it."""
    if running.in_flight:
        queues.running.remove(running)
        queues.leaving.append(Leaving(running))
        return
    _release(queues, directory, running)
    queues.slots.append(running.slot)


def dismiss(queues: Queues, directory: Directory, share: Share) -> None:
    """The step of `share` has been collected, whose request had ended before: what it drew and left is nobody's."""
    running = share.running
    running.computed = share.end
    for _, _, pages in share.rungs:
        directory.give(Tier.DEVICE, pages)
    if not running.in_flight:
        queues.leaving = [leaving for leaving in queues.leaving if leaving.running is not running]
        _let_go(directory, running)
        queues.slots.append(running.slot)


def _release(queues: Queues, directory: Directory, running: Running) -> None:
    queues.running.remove(running)
    _let_go(directory, running)


def _let_go(directory: Directory, running: Running) -> None:
    if running.image is not None:
        directory.release(running.image)
    directory.release(running.path)
    directory.close(running.table)


def share_of(
    queues: Queues, directory: Directory, config: SchedConfig, running: Running, end: int, drafts: int = 0
) -> Share:
    """Decide the rungs of this part, `drafts` tokens past `end` included, and take their pages."""
    end += drafts
    rungs: list[tuple[int, RungKind, Ints]] = []
    for position, kind in _cuts(directory, config, running, end):
        pages = _image_pages(directory)
        if pages is None:
            queues.rungs_skipped += 1
        else:
            queues.rungs_left += 1
            rungs.append((position, kind, pages))
    return Share(running, end, tuple(rungs), drafts)


def _cuts(directory: Directory, config: SchedConfig, running: Running, end: int) -> list[tuple[int, RungKind]]:
    """Prompt rungs within this part, and the rolling one at its last suitable boundary."""
    if not config.cache or not running.job.request.write_cache:
        return []
    start, prompt = running.launched, running.remaining > 1
    cuts = [(p, kind) for p, kind in running.rungs if start < p <= end] if running.rungs else []
    rolling = floor_to(end, directory.config.geometry.rung_grid if prompt else config.decode_rung_tokens)
    in_answer = not prompt or end < running.job.tokens.count
    if rolling > start and in_answer and all(p != rolling for p, _ in cuts):
        cuts.append((rolling, RungKind.ROLLING))
    return sorted(cuts)


def _image_pages(directory: Directory) -> Ints | None:
    """Pages for one image, if that costs no one anything that was promised or could still be copied down."""
    count = directory.config.geometry.image_pages
    if not is_idle(directory, count):
        return None
    directory.epoch += 1
    return directory.pools[Tier.DEVICE].take(count)


def _work(share: Share) -> Work:
    running, job = share.running, share.running.job
    start = running.launched
    pages, known = running.table.name()
    return Work(
        request_id=job.request.id,
        slot=running.slot,
        root=job.root,
        start=start,
        tokens=job.tokens.view[start : share.end - share.drafts],
        pages=pages,
        write_from=running.shared,
        state=running.start,
        cuts=tuple([Cut(position, pages) for position, _, pages in share.rungs]),
        sample=_sample(running) if share.end >= running.drawn else None,
        score=_score(job, start, share.end),
        known=known,
        drafts=share.drafts,
    )


def _sample(running: Running) -> Sample:
    job = running.job
    index = running.drawn - len(job.request.prompt)
    history = job.tokens.view if job.looks_back else None
    return Sample(job.request.params, index, history, index == 0 and job.audited)


def _score(job: Job, start: int, end: int) -> Score | None:
    """The prompt tokens whose log-probabilities this part of the prompt yields, if they are wanted."""
    top = job.request.params.prompt_logprobs
    if top is None:
        return None
    targets = job.request.prompt[start + 1 : end + 1]
    return Score(targets, top) if len(targets) else None
