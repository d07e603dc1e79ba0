"""What a calibration measures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepwell.base.errors import ConfigError

PASSES = 16
"""Decode passes in one measurement."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured: prompt lengths; (sequences, context) of decodes; bytes of copies and of the disk's file; rounds."""

    prompts: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    decodes: tuple[tuple[int, int], ...] = ((1, 256), (4, 256), (8, 256), (1, 2048), (4, 2048))
    copy_bytes: int = 64 << 20
    disk_bytes: int = 64 << 20
    rounds: int = 3

    @classmethod
    def up_to(cls, longest: int, rounds: int) -> Sizes:
        """Prompts of up to `longest` tokens, decodes over up to half of it."""
        short, half = longest // 16, longest // 2
        decodes = ((1, short), (4, short), (8, short), (1, half), (4, half))
        return cls(tuple(longest // part for part in (16, 8, 4, 2, 1)), decodes, rounds=rounds)

    def within(self, longest: int, sequences: int) -> Sizes:
        """Those that a context of `longest` tokens and so many sequences at once allow. Raises ConfigError if too few."""
        prompts = tuple(n for n in self.prompts if n + 2 <= longest)
        decodes = tuple((b, c) for b, c in self.decodes if b <= sequences and c + PASSES + b + 2 <= longest)
        if len(prompts) < 3 or len(decodes) < 3:
            raise ConfigError(
                f"a context of {longest} tokens and {sequences} sequences are too few to measure anything"
            )
        return replace(self, prompts=prompts, decodes=decodes)
