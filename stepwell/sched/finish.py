"""Applies the result of a step: publishes what was computed, hands out tokens, ends finished requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from stepwell.cache.directory import Directory
from stepwell.cache.moves import DEVICE
from stepwell.cache.publish import advance, drop_replaced, leave_rung, pass_by, publish
from stepwell.cache.reuse.explain import PathUse
from stepwell.cache.tree import ROLLING
from stepwell.sched.build import dismiss, release
from stepwell.sched.compose import Built, Share
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Job, Running
from stepwell.sched.queues import Queues
from stepwell.sched.request import Finished, FinishReason, Tokens
from stepwell.sched.step import StepResult

Entry = TypeVar("Entry")

_MUCH = 8
"""Waypoints are left if at least one device page in so many is free; with less room they would displace more useful entries."""


def finish(
    queues: Queues, directory: Directory, config: SchedConfig, built: Built, result: StepResult, now: float
) -> set[int]:
    """Apply one result. Content becomes findable here, after the step that computed it has run, and never before.

    Shares of requests that have ended meanwhile are dropped: no event tells of their tokens, and their rungs are not published. Returns
    the indices of these shares. O(rows) with a small constant, and O(1) objects for each share.
    """
    dropped: set[int] = set()
    errors, scores, of_prompt = dict(result.errors), dict(result.scores), dict(result.target_scores)
    surprised = _hand_out(queues, built, result, errors)
    for index, share in _shares(built, surprised):
        if share.calm and index not in surprised:
            _publish(directory, config, share, now)
        elif queues.leaving and queues.is_leaving(share.running):
            dismiss(queues, directory, share)
            dropped.add(index)
        elif index in errors:
            _discard(queues, directory, share, errors[index])
        else:
            queues.drafts.add(share.drafts, len(result.sampled[index]))
            settled = _settled(share, len(result.sampled[index]))
            job, start = share.running.job, share.running.computed
            kept, reason = _take(job, result.sampled[index], config)
            own = scores.get(index, ())[: len(kept)]
            said = Tokens(job.request.id, kept, own, of_prompt.get(index, ()), start + 1)
            _apply(queues, directory, config, settled, said, reason, now)
    return dropped


def _settled(share: Share, drawn: int) -> Share:
    """`share` as if it had computed accepted drafts alone: it ends behind the `drawn` tokens."""
    if not share.drafts:
        return share
    running = share.running
    end = running.launched = running.computed + drawn
    running.guessing = False
    return replace(share, end=end, drafts=0)


def _hand_out(queues: Queues, built: Built, result: StepResult, errors: Collection[int]) -> set[int]:
    """Hand out the tokens of calm rows. Returns the rows left out, which `finish` handles one by one: those in error, of answers that
    have ended, or that may end with this token."""
    lineup, rows = built.lineup, built.calm.tolist()
    surprised = set(errors)
    if queues.leaving:
        surprised.update(lineup.at.get(leaving.slot, -1) for leaving in queues.leaving)
    if surprised:  # first, since a row in error has no token
        rows = [row for row in rows if row not in surprised]
    drawn = list(chain.from_iterable(_at(rows, result.sampled[: len(lineup.names)])))
    assert len(drawn) == len(rows), "a calm row draws a token a step"
    if not lineup.ends.isdisjoint(drawn):
        ending = {row for row, token in zip(rows, drawn, strict=True) if token in lineup.ends}
        surprised |= ending
        rows = [row for row in rows if row not in ending]
        drawn = [token for token in drawn if token not in lineup.ends]
    board, slots = queues.board, lineup.slots[rows] if surprised else lineup.slots[built.calm]
    board.computed[slots] += 1
    board.last[slots] = drawn
    for tail, token in zip(_at(rows, lineup.tails), drawn, strict=True):
        tail.append(token)
    queues.events += Tokens.each(_at(rows, lineup.names), _at(rows, result.sampled[: len(lineup.names)]))
    return surprised


def _at(rows: list[int], column: Sequence[Entry]) -> Sequence[Entry]:
    """The entries of these rows: mostly all."""
    return column if len(rows) == len(column) else [column[row] for row in rows]


def _shares(built: Built, surprised: set[int]) -> Iterable[tuple[int, Share]]:
    """(index, share) of what is handled request by request, in the order of the step."""
    if not surprised:
        return built.shares.items()
    runs = built.lineup.runs
    more = {row: Share(runs[row], runs[row].computed + 1) for row in surprised & set(built.calm.tolist())}
    return sorted({**more, **built.shares}.items(), key=itemgetter(0))


def _discard(queues: Queues, directory: Directory, share: Share, message: str) -> None:
    """End a request whose logits went wrong, and drop its part of the step."""
    for _, _, pages in share.rungs:
        directory.give(DEVICE, pages)
    share.running.computed = share.end
    release(queues, directory, share.running)
    queues.events.append(Finished(share.running.job.request.id, "error", message))


def _apply(
    queues: Queues,
    directory: Directory,
    config: SchedConfig,
    share: Share,
    said: Tokens,
    reason: FinishReason | None,
    now: float,
) -> None:
    running, job = share.running, share.running.job
    running.computed = share.end
    queues.board.last[running.slot] = job.tokens.last
    if running.image is not None:
        directory.release(running.image)
        running.image = None
    if config.cache and job.request.write_cache:
        _publish(directory, config, share, now)
    if said.tokens or said.prompt_scores:
        queues.events.append(said)
    if reason is not None:
        if job.resumed is not None and running.path.item.node.parent is not None and not job.internal:
            trail = PathUse(job.request.salt, job.request.session, job.resumed, now)
            queues.trails.left(running.path.item.node, trail)
        if directory.external is not None and config.cache and job.request.write_cache and not job.internal:
            directory.external.leave(job.request.salt, job.tokens.view[: running.path.item.node.end].copy())
        release(queues, directory, running)
        queues.events.append(Finished(job.request.id, reason))


def _publish(directory: Directory, config: SchedConfig, share: Share, now: float) -> None:
    """Publish whole blocks, then rungs. Pages replaced by the tree's own stay while a launched step reads them."""
    running = share.running
    if running.table.has_retired:  # no launched step names them any more
        directory.give(DEVICE, running.table.take_retired())
    known = min(share.end, running.job.tokens.count)
    end = known - known % directory.tree.block
    if end > running.path.item.node.end or share.rungs:
        if not _advance(directory, config, share, end, now):
            _lengthen(directory, config, share, end, now)
        if running.table.has_retired and not running.in_flight:
            directory.give(DEVICE, running.table.take_retired())
        if not running.table.is_named:
            running.board.calm[running.slot] = 0  # the next step names the pages that have changed


def _lengthen(directory: Directory, config: SchedConfig, share: Share, end: int, now: float) -> None:
    """Publish the blocks up to `end`, and rungs. Each new rung replaces the last rolling one, which may stay as a waypoint."""
    running, job = share.running, share.running.job
    publish(directory, running.path, job.tokens.view, end, running.table, now, adopt=job.request.read_cache)
    published = running.path.item.node.end
    for position, kind, pages in share.rungs:
        if position > min(end, published):
            directory.give(DEVICE, pages)
            continue
        if running.rolling is not None:  # first, so that it does not supersede others
            (pass_by if _leaves_waypoint(directory, running, config) else drop_replaced)(directory, running.rolling)
        rung = leave_rung(directory, running.path, position, pages, kind, now)
        running.rolling = rung if kind == ROLLING else None
    running.rungs = tuple(r for r in running.rungs if r[0] > share.end)


def has_plenty(directory: Directory) -> bool:
    """True if enough of the device is free for waypoints."""
    pool = directory.pools[DEVICE]
    return _MUCH * pool.free >= pool.total


def _leaves_waypoint(directory: Directory, running: Running, config: SchedConfig) -> bool:
    """True if the rolling rung of a request is to stay as a waypoint: it lies in the answer, and much of the device is free."""
    assert running.rolling is not None
    position = running.rolling.image.node.end
    within = position > len(running.job.request.prompt)
    return within and config.is_waypoint(position) and has_plenty(directory)


def _advance(directory: Directory, config: SchedConfig, share: Share, end: int, now: float) -> bool:
    """Move the rolling rung of an answer in place, if nothing else is to be published: the most frequent case by far."""
    running = share.running
    if running.rolling is None or len(share.rungs) != 1 or _leaves_waypoint(directory, running, config):
        return False
    position, kind, pages = share.rungs[0]
    if position != end or kind != ROLLING:
        return False
    return advance(directory, running.path, running.rolling, running.job.tokens.view, end, running.table, pages, now)


def _take(job: Job, sampled: tuple[int, ...], config: SchedConfig) -> tuple[tuple[int, ...], FinishReason | None]:
    """Append sampled tokens up to the one that ends the answer. Returns those kept, and why the answer ends (None: it does not)."""
    params = job.request.params
    kept = sampled[: job.limit - job.tokens.count]
    reason: FinishReason | None = None
    ends = params.ends(config.eos)
    if ends:
        floor = params.min_tokens - job.generated - 1
        stop = next((i for i, token in enumerate(kept) if token in ends and i >= floor), None)
        if stop is not None:
            kept, reason = kept[: stop + 1], "stop"
    job.tokens.extend(kept)
    if reason is None and job.tokens.count >= job.limit:
        reason = "length"
    return kept, reason
