"""The pages of one request, in token order."""

from __future__ import annotations

import numpy as np

from stepwell.base.geometry import Ints


class BlockTable:
    """Page i holds the KV of tokens [i·block, (i+1)·block).

    Private pages are this request's alone; the others belong to the tree, are held by the request's lease, and are never written.
    `promised` counts pages of the prompt that were reserved at admission and not yet taken.
    """

    __slots__ = ("_count", "_pages", "_private", "promised")

    def __init__(self, shared: Ints) -> None:
        self._pages: Ints = np.empty(max(16, 2 * len(shared)), np.int32)
        self._private = np.zeros(len(self._pages), np.bool_)
        self._count = len(shared)
        self._pages[: self._count] = shared
        self.promised = 0

    def __len__(self) -> int:
        return self._count

    @property
    def pages(self) -> Ints:
        """All pages; a view, valid until the table next changes."""
        return self._pages[: self._count]

    @property
    def private(self) -> Ints:
        """Pages to give back when the request ends."""
        return self._pages[: self._count][self._private[: self._count]]

    def is_private(self, start: int, end: int) -> bool:
        """Whether pages [start, end) are all private."""
        return bool(self._private[start:end].all())

    def append(self, pages: Ints) -> None:
        """Add private pages at the end."""
        end = self._count + len(pages)
        if end > len(self._pages):
            room = max(end, 2 * len(self._pages))
            self._pages = np.concatenate([self.pages, np.empty(room - self._count, np.int32)])
            self._private = np.concatenate([self._private[: self._count], np.zeros(room - self._count, np.bool_)])
        self._pages[self._count : end] = pages
        self._private[self._count : end] = True
        self._count = end

    def detach(self, start: int, end: int) -> tuple[Ints, Ints]:
        """Take out the pages from block `start` on, all private: those before block `end`, and the rest."""
        assert self.is_private(start, self._count), "shared pages are not this table's to give away"
        pages, rest = self._pages[start : min(end, self._count)].copy(), self._pages[end : self._count].copy()
        self._count = start
        return pages, rest

    def share(self, start: int, pages: Ints) -> Ints:
        """From block `start` on, use `pages`, which the tree owns; returns the private pages that they replace, if they differ."""
        end = start + len(pages)
        assert end <= self._count
        mask = self._private[start:end] & (self._pages[start:end] != pages)
        replaced = self._pages[start:end][mask]
        self._pages[start:end] = pages
        self._private[start:end] = False
        return np.asarray(replaced, np.int32)
