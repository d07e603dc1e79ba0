"""What the demo found, for people and for machines."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from rich.table import Table

from stepwell.demo.client import Answer
from stepwell.demo.script import Turn

Summary: TypeAlias = dict[str, int | float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One turn, asked twice: through the cache, and cold. `wanted` is what a right answer holds."""

    turn: Turn
    served: Answer
    cold: Answer
    wanted: str = ""

    @property
    def identical(self) -> bool:
        """Whether the cache changed nothing but the time."""
        return self.served.says_the_same(self.cold)

    @property
    def right(self) -> bool:
        """Whether the model knew the answer, which is the model's merit alone."""
        return bool(self.wanted) and self.wanted in self.served.text


def table(rows: list[Row]) -> Table:
    """One line a turn, in the order of asking; times in milliseconds."""
    shown = Table(title="Agent conversations through the tiered prompt cache", title_justify="left")
    for heading in ("conv.", "turn", "prompt", "device", "host", "recomputed", "TTFT ms", "cold ms"):
        shown.add_column(heading, justify="right")
    shown.add_column("same answer")
    for row in rows:
        numbers = (row.turn.conversation + 1, row.turn.turn + 1, row.served.prompt, row.served.device, row.served.host)
        times = (row.served.recomputed, round(row.served.ttft * 1000), round(row.cold.ttft * 1000))
        verdict = "yes" if row.identical else "[bold red]NO[/]"
        shown.add_row(*(f"{number:,}" for number in (*numbers, *times)), verdict)
    return shown


def summarise(rows: list[Row]) -> Summary:
    """The last line of the demo.

    turns                   turns asked
    answers_right           how many of them the model answered rightly
    answers_identical       how many of them gave the answer of the cold run
    cached_device, …_host   prompt tokens served from each tier, over all turns
    recomputed              prompt tokens computed again or for the first time
    resumed_ttft_over_cold  median time to first token over median cold one, over the turns that reused anything;
                            None where none did
    """
    resumed = [row for row in rows if row.served.cached]
    return {
        "turns": len(rows),
        "answers_right": sum(row.right for row in rows),
        "answers_identical": sum(row.identical for row in rows),
        "cached_device": sum(row.served.device for row in rows),
        "cached_host": sum(row.served.host for row in rows),
        "recomputed": sum(row.served.recomputed for row in rows),
        "resumed_ttft_over_cold": round(_ratio(resumed), 3) if resumed else None,
    }


def _ratio(rows: list[Row]) -> float:
    return median(row.served.ttft for row in rows) / median(row.cold.ttft for row in rows)


def complaints(rows: list[Row]) -> list[str]:
    """What the demo must show and did not; empty is success."""
    found = [
        f"conversation {row.turn.conversation + 1}, turn {row.turn.turn + 1}: {row.served.text!r} through the cache, "
        f"{row.cold.text!r} cold"
        for row in rows
        if not row.identical
    ]
    if not any(row.served.host for row in rows):
        found.append("no turn was served from host memory")
    if any(row.cold.cached for row in rows):
        found.append("a cold run was served from the cache")
    return found
