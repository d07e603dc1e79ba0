"""Whether clients send answers back as they were given: learnt from those who do and do not."""

from __future__ import annotations

from dataclasses import dataclass

_KEEP = 0.98
"""What is left of earlier turns' weight after one more: the last fifty or so decide."""


@dataclass(slots=True)
class Answers:
    """Turns that went on after the answer before, and turns that left it out (its text was rendered anew, say), recent ones first."""

    repeated: float = 1.0
    left_out: float = 0.0

    def saw(self, repeated: bool) -> None:
        """The next turn has come for one answer."""
        self.repeated = self.repeated * _KEEP + repeated
        self.left_out = self.left_out * _KEEP + (not repeated)

    @property
    def in_vain(self) -> bool:
        """Whether hardly any answer is gone on from: rungs at their ends are then the first to go, and not worth a copy."""
        return self.left_out > 12 * self.repeated
