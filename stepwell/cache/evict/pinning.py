"""Pinning a prompt: what is cached of it goes last for a time. See `stepwell.cache.evict.pins` for what that means and its bounds."""

from __future__ import annotations

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.evict.pins import Label, Pin
from stepwell.cache.tree import Item, Node


def pin(directory: Directory, label: Label, tokens: Ints, until: float) -> int:
    """Pin the longest prefix of `tokens` that can be resumed, in whichever tiers it is. Returns its tokens.

    A pin of the same label ends first. Less is pinned where the bounds leave no room for all of it; 0 if nothing is cached or nothing
    fits. O(path).
    """
    unpin(directory, label)
    found = directory.survey(label[0], tokens)
    image = _deepest(directory, [node for node in found.path if node.end <= found.matched])
    if image is None:
        return 0
    begun = Pin(label, image.node, image, until)
    directory.pins.begin(begun)
    for item in begun.items():
        directory.reconsider(item)
    return image.node.end


def unpin(directory: Directory, label: Label) -> int:
    """End the pin of this label. Returns the tokens that it held; 0 if there is none."""
    known = directory.pins.known.get(label)
    if known is None:
        return 0
    _end(directory, known)
    return known.tip.end


def expire(directory: Directory, now: float) -> None:
    """End the pins whose time is over. O(1) where there is none."""
    while (over := directory.pins.ended(now)) is not None:
        _end(directory, over)


def _deepest(directory: Directory, path: list[Node]) -> Item | None:
    """The image of the deepest rung on `path` (from the top down) that can be resumed and fits with all KV above it."""
    if not path:
        return None
    pins, deepest = directory.pins, None
    left = pins.room(path[0].kv.tenant)
    for node in path:
        left -= 0 if node.kv.pins else pins.size(node.kv)
        if left < 0 or node.kv.best() is None:
            break
        if node.rung is not None and node.rung.image.best() is not None:
            image = node.rung.image
            if image.pins or left >= pins.size(image):
                deepest = image
    return deepest


def _end(directory: Directory, pin: Pin) -> None:
    for item in directory.pins.end(pin):
        directory.offer(item)
