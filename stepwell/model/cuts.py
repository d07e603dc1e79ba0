"""A part of a tensor that is cut along one axis, in memory or as it is read from a file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from stepwell.base.units import ceil_div

if TYPE_CHECKING:
    from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges [start, end), ascending and apart."""


@dataclass(frozen=True, slots=True)
class Cut:
    """These ranges of one axis, in order; all of every other axis."""

    axis: int
    spans: Spans

    @property
    def count(self) -> int:
        """How many are taken along the axis."""
        return sum(end - start for start, end in self.spans)

    def shape(self, whole: Shape) -> Shape:
        """The part's, of a tensor of this shape."""
        return (*whole[: self.axis], self.count, *whole[self.axis + 1 :])

    def of(self, tensor: Tensor) -> Tensor:
        """A copy of the part."""
        import torch  # here alone: settings are read without it

        parts = [tensor.narrow(self.axis, start, end - start) for start, end in self.spans]
        return torch.cat(parts, self.axis)

    def runs(self, whole: Shape, item: int) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of what lies together in a tensor of this shape with `item` bytes an element, in order."""
        inner = math.prod(whole[self.axis + 1 :]) * item
        for outer in range(math.prod(whole[: self.axis])):
            for start, end in self.spans:
                yield (outer * whole[self.axis] + start) * inner, (end - start) * inner

    def shortest(self, whole: Shape, item: int) -> int:
        """Bytes of the shortest of these runs."""
        return min(end - start for start, end in self.spans) * math.prod(whole[self.axis + 1 :]) * item

    def blocks(self, size: int, length: int) -> Cut | None:
        """The same of blocks of `size` along the axis, which has `length`; None where a block would be cut in two."""
        if any(start % size or (end % size and end != length) for start, end in self.spans):
            return None
        return Cut(self.axis, tuple((start // size, ceil_div(end, size)) for start, end in self.spans))
