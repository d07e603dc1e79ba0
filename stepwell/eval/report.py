"""What two passes over the same questions show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from typing import Any

from rich.table import Table

from stepwell.eval.subject import Answer, Sources
from stepwell.eval.task import Question, ended, flexible, strict


@dataclass(frozen=True, slots=True)
class Marks:
    """One pass: which answers are right, by either way of reading them."""

    strict: tuple[bool, ...]
    flexible: tuple[bool, ...]
    empty: int
    truncated: int
    sources: Sources
    loads: int
    failed: int

    @classmethod
    def of(cls, questions: Sequence[Question], answers: Sequence[Answer]) -> Marks:
        texts = [ended(answer.text) for answer in answers]
        pairs = list(zip(questions, texts, strict=True))
        return cls(
            strict=tuple(strict(text) == q.number for q, text in pairs),
            flexible=tuple(flexible(text) == q.number for q, text in pairs),
            empty=sum(not text.strip() for text in texts),
            truncated=sum(a.truncated and text == a.text for a, text in zip(answers, texts, strict=True)),
            sources=sum((a.sources for a in answers), Sources()),
            loads=sum(a.loaded for a in answers),
            failed=sum(a.failed for a in answers),
        )

    def figures(self) -> dict[str, Any]:
        """For machines."""
        s, count = self.sources, len(self.strict)
        return {
            "strict": round(sum(self.strict) / count, 4),
            "strict_stderr": round(stderr(self.strict), 4),
            "flexible": round(sum(self.flexible) / count, 4),
            "flexible_stderr": round(stderr(self.flexible), 4),
            "empty": self.empty,
            "truncated": self.truncated,
            "tokens": {"prompt": s.prompt, "device": s.device, "host": s.host, "disk": s.disk},
            "loads": self.loads,
            "loads_failed": self.failed,
        }


def stderr(right: Sequence[bool]) -> float:
    """Standard error of the share that is right (Bessel's correction, as lm-evaluation-harness has it); 0 for one question."""
    n = len(right)
    share = sum(right) / n
    return sqrt(share * (1 - share) / (n - 1)) if n > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Matched:
    """Two passes, question by question."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> Matched:
        pairs = list(zip(first, second, strict=True))
        return cls(*(pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))))

    @property
    def flips(self) -> int:
        """Questions that one pass answered rightly and the other did not."""
        return self.only_first + self.only_second

    def chance(self) -> float:
        """How likely a split of the flips at least so uneven is, if both passes are equally good (exact McNemar test, two-sided)."""
        n, k = self.flips, min(self.only_first, self.only_second)
        return min(1.0, float(2 * sum(comb(n, i) for i in range(k + 1)) / 2**n))


def identical(first: Sequence[Answer], second: Sequence[Answer]) -> int:
    """Answers that are the same token by token."""
    return sum(a.tokens == b.tokens for a, b in zip(first, second, strict=True))


def pass_table(passes: Sequence[Marks]) -> Table:
    """A column a pass, for people."""
    table = Table(title="GSM8K", title_justify="left")
    table.add_column("")
    for number in range(1, len(passes) + 1):
        table.add_column(f"pass {number}", justify="right")
    table.add_row("right, strict", *(_share(one.strict) for one in passes))
    table.add_row("right, flexible", *(_share(one.flexible) for one in passes))
    for heading, counts in (
        ("empty answers", [one.empty for one in passes]),
        ("cut off", [one.truncated for one in passes]),
        ("tokens from the device", [one.sources.device for one in passes]),
        ("tokens from host", [one.sources.host for one in passes]),
        ("tokens from disk", [one.sources.disk for one in passes]),
        ("tokens computed", [one.sources.prompt - one.sources.cached for one in passes]),
        ("prompts that loaded", [one.loads for one in passes]),
        ("loads that failed", [one.failed for one in passes]),
    ):
        table.add_row(heading, *(f"{count:,}" for count in counts))
    return table


def _share(right: Sequence[bool]) -> str:
    return f"{100 * sum(right) / len(right):.1f} ± {100 * stderr(right):.1f} %"


def matched_table(matched: Matched) -> Table:
    """The comparison question by question, for people."""
    table = Table(title="Question by question (strict)", title_justify="left")
    for heading in ("right in both", "only in the first", "only in the last", "in neither", "chance of such a split"):
        table.add_column(heading, justify="right")
    counts = (matched.both, matched.only_first, matched.only_second, matched.neither)
    table.add_row(*map(str, counts), f"{matched.chance():.2f}")
    return table
