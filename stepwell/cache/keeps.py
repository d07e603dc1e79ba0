"""Keeping what stands on a path up to a rung, for a time: pins, hints of callers, sessions. See `stepwell.cache.kept`."""

from __future__ import annotations

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.kept import MOST_KEEPS, Keep, Label
from stepwell.cache.tree import Node, RungKind


def keep(directory: Directory, label: Label, salt: str, tokens: Ints, until: float, rungs: int = 1) -> int:
    """Keep the longest part of `tokens` that could be resumed from, in whichever tiers it is; how many tokens that is.

    rungs   images that are kept, the deepest ones
    A keep of the same label ends, and others than pins that end sooner give way. Fewer tokens are kept where the share for it is used up by
    what stays; 0 where nothing is there or fits.
    """
    found = directory.survey(salt, tokens)
    path = [node for node in found.path if node.end <= found.matched]
    return keep_path(directory, label, path, until, rungs)


def keep_path(
    directory: Directory, label: Label, path: list[Node], until: float, rungs: int = 1, pin: bool = True
) -> int:
    """The same for nodes from the top down; without `pin` not on the device, where there is a tier below it."""
    unkeep(directory, label)
    deepest = max((node.end for node in path if node.rung is not None), default=0)
    tips = _fitting(directory, path, rungs)
    while (not tips or tips[-1].end < deepest) and _give_way(directory, until):
        tips = _fitting(directory, path, rungs)
    if not tips:
        return 0
    tip = tips[-1]
    images = tuple(node.rung.image for node in reversed(tips[-rungs:]) if node.rung is not None)
    begun = Keep(label, tip, images, until, pin)
    directory.keeps.begin(begun)
    for item in begun.items():
        directory.reconsider(item)
    return tip.end


def _give_way(directory: Directory, until: float) -> bool:
    """End the keep that would end first, unless it is a pin or lasts as long as the new one; False if there is none."""
    soonest = directory.keeps.soonest()
    if soonest is None or soonest.until >= until:
        return False
    _end(directory, soonest)
    return True


def _fitting(directory: Directory, path: list[Node], rungs: int) -> list[Node]:
    """The nodes with a rung on `path`, the last of which is the deepest that could be kept with `rungs` images."""
    keeps = directory.keeps
    left = keeps.most - keeps.pages if len(keeps.known) < MOST_KEEPS else -1
    tips: list[Node] = []
    last = 0
    for node in path:
        left -= 0 if node.kv.kept else keeps.size(node.kv)
        if left < 0 or node.kv.best() is None:
            break
        if node.rung is not None and node.rung.image.best() is not None:
            tips.append(node)
            images = [tip.rung.image for tip in tips[-rungs:] if tip.rung is not None]
            last = len(tips) if left >= sum(keeps.size(image) for image in images if not image.kept) else last
    return tips[:last]


def unkeep(directory: Directory, label: Label) -> int:
    """End the keep of this label; how many tokens it kept."""
    known = directory.keeps.known.get(label)
    if known is None:
        return 0
    _end(directory, known)
    return known.tip.end


def expire(directory: Directory, now: float) -> None:
    """End the keeps whose time is over. O(1) where there is none."""
    while (keep := directory.keeps.ended(now)) is not None:
        _end(directory, keep)


def follow_up(directory: Directory, tip: Node, kind: str, until: float) -> None:
    """End the keeps of `kind` that the turns before have left on the path to `tip`, where answers ended that it goes on from."""
    path = tip.up()
    next(path)
    for node in path:
        if node.rung is not None and node.rung.kind == RungKind.ROLLING:
            for keep in list(directory.keeps.at.get(node, ())):
                if keep.label[0] == kind and keep.until <= until:
                    _end(directory, keep)


def _end(directory: Directory, keep: Keep) -> None:
    for item in directory.keeps.end(keep):
        directory.offer(item)
