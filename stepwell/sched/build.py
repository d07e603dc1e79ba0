"""The next step: every decode first, drafts behind it, then prompts, oldest first, up to the token budget.

Prefill is cut on the rung grid, so that a resume at a rung repeats exactly the segments of a cold run. Pages of prompts were
promised at admission. A growing answer may preempt the youngest request, never the oldest. Images for rungs are best effort: they take
pages that are free or clean and not promised, and preempt no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages, make_room
from stepwell.cache.moves import DEVICE
from stepwell.cache.tree import ROLLING, RungKind
from stepwell.sched.compose import Built, Share, compose
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import drafts_of, is_idle
from stepwell.sched.job import Running
from stepwell.sched.queues import Queues, enqueue, leave
from stepwell.sched.step import Guidance, Unguided
from stepwell.sched.suspend import let_go_all, suspend

UNGUIDED = Unguided()
LEAST_SHARE = 0.25
"""Share of the time of a step that prompts get at least, however long decodes are expected to take."""


class _Pages(Enum):
    TAKEN = auto()
    COMING = auto()  # a copy in flight will make room
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Drain:
    """A request must be preempted: collect the launched step first. That may end a request, and completes the state of the victim."""


def build(
    queues: Queues,
    directory: Directory,
    config: SchedConfig,
    costs: Costs,
    now: float,
    in_flight: bool = False,
    guidance: Guidance = UNGUIDED,
) -> Built | Drain | None:
    """The next step, to be launched at once, or None if nothing can be computed now. Takes the pages that it writes.

    Beside decodes, prompts are computed as long as the step is expected to stay within `max_step_s`, but at least one grid.

    in_flight  a launched step has not been collected yet: tokens that it draws are decoded before they are known
    guidance   a request with a grammar joins once its mask is ready; no other request waits for that
    """
    board, block, line = queues.board, directory.tree.block, queues.line()
    if len(line) and board.is_quiet(line, block):  # most steps
        return compose(queues, config, (), line)
    maker = _Maker(queues, directory, costs, now)
    decodes, calm, lacking = board.decodes(line), board.is_calm(line), board.lacks_page(line, block)
    turning = np.flatnonzero(calm & lacking).tolist()
    at_once = _have_room(directory, int(lacking.sum()))
    if at_once:
        directory.grow_each([queues.running[place].table for place in turning])
    else:
        turning = []
    special: list[int] = []
    for place in np.flatnonzero(decodes & (~calm if at_once else ~calm | lacking)).tolist():
        if place >= len(queues.running):
            break  # only the youngest are preempted, so this and all later ones have been
        running = queues.running[place]
        if not _can_decode(queues.drafting, running) or _waits(running, guidance):
            continue
        grown = not lacking[place] or _grow_or_preempt(maker, running, running.launched + 1, in_flight)
        if isinstance(grown, Drain):
            return grown
        if grown:
            (turning if calm[place] else special).append(place)
    line, going = line[: len(queues.running)], calm & ~lacking  # without those who were preempted
    going[turning] = True
    going = going[: len(line)]
    closing = _closing(queues, config, np.flatnonzero(going & board.ends_block(line, block)))
    parts = {place: _decode(queues, directory, config, queues.running[place]) for place in special}
    parts |= zip(closing, _closed(queues, directory, config, [queues.running[place] for place in closing]), strict=True)
    shares = [parts[place] for place in sorted(parts)]
    decoding = int(going.sum()) + len(special)
    tokens = decoding + sum(share.drafts for share in shares)
    rest = np.flatnonzero(~decodes[: len(line)]).tolist()
    shares += _prompts(maker, config, guidance, [queues.running[place] for place in rest], tokens)
    if not (decoding or shares):
        return None
    return compose(queues, config, shares, line[going], [queues.running[place] for place in turning])


def _closing(queues: Queues, config: SchedConfig, places: npt.NDArray[np.intp]) -> list[int]:
    """Those of `places` whose blocks are published."""
    if not config.cache:
        return []
    return [place for place in places.tolist() if queues.running[place].job.request.write_cache]


def _closed(queues: Queues, directory: Directory, config: SchedConfig, runs: Sequence[Running]) -> list[Share]:
    """The last token of a block for each of `runs`, with a rolling rung behind it where one is due."""
    ends = [running.launched + 1 for running in runs]
    due = sum(end % config.decode_rung_tokens == 0 for end in ends)
    images = _images(directory, due)
    queues.rungs_left += len(images)
    queues.rungs_skipped += due - len(images)
    shares: list[Share] = []
    for running, end in zip(runs, ends, strict=True):
        rung = images and end % config.decode_rung_tokens == 0
        shares.append(Share(running, end, ((end, ROLLING, images.pop()),) if rung else (), calm=True))
    return shares


def _images(directory: Directory, count: int) -> list[Ints]:
    """Pages for each of `count` images, or for fewer if not enough pages are idle."""
    size = directory.config.geometry.image_pages
    if not is_idle(directory, count * size):
        some = (_image_pages(directory) for _ in range(count))
        return [pages for pages in some if pages is not None]
    directory.epoch += count > 0
    pages = directory.pools[DEVICE].take(count * size)
    return [pages[at * size : (at + 1) * size] for at in reversed(range(count))]


def _decode(queues: Queues, directory: Directory, config: SchedConfig, running: Running) -> Share:
    """The next token of an answer, or the last of a prompt, and the drafts behind it."""
    drafts = drafts_of(directory, config, running) if queues.drafting else 0
    return share_of(queues, directory, config, running, running.launched + 1, drafts)


def _prompts(
    maker: _Maker, config: SchedConfig, guidance: Guidance, runs: Sequence[Running], decoding: int
) -> list[Share]:
    """Parts of the prompts of `runs`, as the budgets of tokens and time allow beside `decoding` tokens of answers."""
    queues, directory, costs = maker.queues, maker.directory, maker.costs
    budget, grid = config.max_num_batched_tokens - decoding, directory.config.geometry.rung_grid
    seconds = inf
    if decoding and config.max_step_s:
        left = config.max_step_s - costs.decode_s - costs.prompt_step_s
        seconds = max(left, config.max_step_s * LEAST_SHARE)  # a misjudged speed must not starve prompts
    shares: list[Share] = []
    for running in runs:
        end = _chunk_end(running, budget, grid)
        if seconds < inf:
            least = 0 if shares else grid
            end = _in_time(running, end, max(least, costs.prefill_within(running.launched, seconds)), grid)
        if end <= running.launched:
            break
        if end == running.drawn and _waits(running, guidance):
            continue
        images = len(_rungs_due(directory, config, running, end)) * directory.config.geometry.image_pages
        if _take_pages(maker, running, end, images) is _Pages.TAKEN:
            budget -= end - running.launched
            seconds -= costs.prefill_seconds(running.launched, end)
            shares.append(share_of(queues, directory, config, running, end))
    return shares


def _have_room(directory: Directory, pages: int) -> bool:
    """True if so many pages are free and not promised."""
    return pages <= min(directory.pools[DEVICE].free, directory.spendable)


def _can_decode(drafting: bool, running: Running) -> bool:
    """True if a decoding request can compute one more token now. It cannot at its limit. It waits for its last step to be collected if
    that had drafts, or if its next token depends on the last one outside the model (a grammar, penalties), or if it is about to draft."""
    job, drawn = running.job, running.drawn
    if running.guessing:
        return False
    waits = job.looks_back or (drafting and running.guessed)
    return drawn < job.limit and (drawn == job.tokens.count or not waits)


def _waits(running: Running, guidance: Guidance) -> bool:
    """True if a grammar restricts its next token, and the allowed tokens are not known yet."""
    job = running.job
    if not job.request.params.grammar:
        return False
    return not guidance.ready(job.request.id, job.request.params, job.answer)


def awaits_mask(queues: Queues, guidance: Guidance) -> bool:
    """True if a running request waits only for its grammar's mask, which will come."""
    return any(_waits(running, guidance) for running in queues.running)


def guide(built: Built, guidance: Guidance) -> None:
    """Begin to compute the masks that the next tokens of a collected step's requests need."""
    for share in built.shares.values():  # a request with a grammar is never calm
        job = share.running.job
        if job.request.params.grammar and share.running.drawn == job.tokens.count:
            guidance.begin(job.request.id, job.request.params, job.answer)


def _chunk_end(running: Running, budget: int, grid: int) -> int:
    """Where this step's part of a prompt ends: its end, or the last grid boundary that the budget reaches."""
    if running.remaining <= budget:
        return running.drawn
    return floor_to(running.launched + budget, grid)


def _in_time(running: Running, end: int, count: int, grid: int) -> int:
    """Where a part that would end at `end` ends if it may have `count` tokens: there, or at the last grid boundary within."""
    return end if end - running.launched <= count else floor_to(running.launched + count, grid)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes room for one step."""

    queues: Queues
    directory: Directory
    costs: Costs
    now: float

    def make(self, pages: int) -> bool:
        """Begin copies that free `pages` pages. Returns whether copies under way will."""
        making = make_room(self.directory, pages, self.costs, self.now)
        self.queues.moves.extend(making.moves)
        return making.coming


def _take_pages(maker: _Maker, running: Running, end: int, images: int = 0) -> _Pages:
    """Take the pages for tokens up to `end`, or begin copies down that make room for them and for `images` pages of rungs."""
    directory, table = maker.directory, running.table
    count = max(0, directory.config.geometry.pages_for(end) - len(table))
    if count == 0 and images == 0:
        return _Pages.TAKEN
    spendable = directory.spendable + min(count, table.promised)
    if count > spendable:
        # only copies that read the device make room there
        return _Pages.COMING if directory.coming(DEVICE) else _Pages.NONE
    wanted = min(count + images, spendable)
    if not free_pages(directory, wanted):
        if maker.make(wanted - directory.room().instant):
            return _Pages.COMING
        free_pages(directory, count, force=True)
    directory.grow(table, count)
    return _Pages.TAKEN


def grow(directory: Directory, running: Running, end: int) -> bool:
    """Take the pages for tokens up to `end` if they are free or clean. Returns whether it has them."""
    count = max(0, directory.config.geometry.pages_for(end) - len(running.table))
    if not free_pages(directory, count):
        return False
    directory.grow(running.table, count)
    return True


def _grow_or_preempt(maker: _Maker, running: Running, end: int, in_flight: bool) -> bool | Drain:
    """Take the page for one more token; preempts the youngest requests for it if need be. False: not in this step."""
    queues, directory = maker.queues, maker.directory
    while True:
        pages = _take_pages(maker, running, end)
        if pages is not _Pages.NONE:
            return pages is _Pages.TAKEN
        if in_flight:
            return Drain()
        if _give_retired(queues, directory):
            continue
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


def _give_retired(queues: Queues, directory: Directory) -> bool:
    """Free pages of running requests that the tree's own have replaced. Returns whether there were any. The caller makes sure that no
    launched step reads them."""
    tables = [running.table for running in queues.running if running.table.has_retired]
    for table in tables:
        directory.give(DEVICE, table.take_retired())
    return bool(tables)


def preempt(queues: Queues, directory: Directory, victim: Running) -> None:
    """Let `victim` wait again. What it computed is published; it continues from there if it can, or else from its last rung."""
    suspended = suspend(directory, victim)
    _release(queues, directory, victim)
    if suspended is None:
        queues.slots.append(victim.slot)
    queues.preemptions += 1
    enqueue(queues, victim.job, suspended)


def release(queues: Queues, directory: Directory, running: Running) -> None:
    """Release all that a request holds that has ended: at once, or when the last launched step that names it has been collected."""
    if running.in_flight:
        leave(queues, running)
        queues.leaving.append(running)
        return
    _release(queues, directory, running)
    queues.slots.append(running.slot)


def dismiss(queues: Queues, directory: Directory, share: Share) -> None:
    """Drop the results of `share`, whose request ended before its step was collected, and release what it still holds."""
    running = share.running
    running.computed = share.end
    for _, _, pages in share.rungs:
        directory.give(DEVICE, pages)
    if not running.in_flight:
        queues.leaving.remove(running)
        _let_go(directory, running)
        queues.slots.append(running.slot)


def _release(queues: Queues, directory: Directory, running: Running) -> None:
    leave(queues, running)
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
    for position, kind in _rungs_due(directory, config, running, end):
        pages = _image_pages(directory)
        if pages is None:
            queues.rungs_skipped += 1
        else:
            queues.rungs_left += 1
            rungs.append((position, kind, pages))
    return Share(running, end, tuple(rungs), drafts)


def _rungs_due(directory: Directory, config: SchedConfig, running: Running, end: int) -> list[tuple[int, RungKind]]:
    """Prompt rungs within this part, and the rolling one at its last suitable boundary."""
    if not config.cache or not running.job.request.write_cache:
        return []
    start, prompt = running.launched, running.remaining > 1
    rolling = floor_to(end, directory.config.geometry.rung_grid if prompt else config.decode_rung_tokens)
    due = rolling > start and (not prompt or end < running.job.tokens.count)
    if not running.rungs:
        return [(rolling, ROLLING)] if due else []
    cuts = [(p, kind) for p, kind in running.rungs if start < p <= end]
    if due and all(p != rolling for p, _ in cuts):
        cuts.append((rolling, ROLLING))
    return sorted(cuts)


def _image_pages(directory: Directory) -> Ints | None:
    """Pages for one image, if so many are free or clean and not promised. None if not."""
    count = directory.config.geometry.image_pages
    if not is_idle(directory, count):
        return None
    directory.epoch += 1
    return directory.pools[DEVICE].take(count)
