"""Ask, ask again, compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from stepwell.cache.moves import Tier
from stepwell.eval.report import Marks, Matched, identical, matched_table, pass_table
from stepwell.eval.subject import Answer, Subject, Told
from stepwell.eval.task import Question

if TYPE_CHECKING:
    from stepwell.eval.controls import Losses

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that was found. `losses` only of an engine in this process; `loads_failed` None where it is not known."""

    name: str
    tier: Tier
    questions: int
    passes: tuple[Marks, ...]
    matched: Matched | None
    identical: int | None
    loads_failed: int | None
    losses: Losses | None

    @property
    def served(self) -> float:
        """Share of the last pass's prompt tokens that came from the tier."""
        last = self.passes[-1].sources
        tokens = {Tier.DEVICE: last.device, Tier.HOST: last.host, Tier.DISK: last.disk}[self.tier]
        return tokens / last.prompt if last.prompt else 0.0

    def figures(self) -> dict[str, Any]:
        """For machines: the last line of `--json`."""
        told: dict[str, Any] = {"subject": self.name, "tier": self.tier.name.lower(), "questions": self.questions}
        told |= {f"pass{i}": one.figures() for i, one in enumerate(self.passes, 1)}
        if self.matched is not None:
            m = self.matched
            told |= {"flips": m.flips, "flips_to_right": m.only_second, "flips_to_wrong": m.only_first}
            told |= {"matched": [m.both, m.only_first, m.only_second, m.neither], "chance": round(m.chance(), 4)}
            told |= {"identical_continuations": self.identical}
        told |= {"served_from_tier": round(self.served, 4), "loads_failed": self.loads_failed}
        return told | (loss_figures(self.losses) if self.losses is not None else {})


def loss_figures(losses: Losses) -> dict[str, Any]:
    """Nats a token; a control is what it adds to the loss, and the share of answers that it changes."""
    told: dict[str, Any] = {
        "scored": losses.questions,
        "loss_cold": round(losses.cold, 5),
        "loss_resumed": round(losses.resumed, 5),
        "loss_difference": round(abs(losses.resumed - losses.cold), 7),
        "loss_difference_worst": round(losses.worst, 7),
    }
    told |= {f"control_{name}": round(added, 4) for name, (added, _) in losses.controls.items()}
    return told | {"answers_changed": {name: round(share, 4) for name, (_, share) in losses.controls.items()}}


def evaluate(
    subject: Subject, questions: Sequence[Question], tier: Tier, passes: int, scored: int, console: Console
) -> Verdict:
    """Ask all questions `passes` times; then, in an engine of this process, score `scored` of them and run the controls."""
    answers: list[list[Answer]] = []
    before = subject.failed_loads()
    for number in range(passes):
        if number:
            subject.between()
        with told_by_bar(console, f"pass {number + 1}", len(questions)) as told:
            answers.append(subject.answer([q.prompt for q in questions], told))
    after = subject.failed_loads()
    failed = None if before is None or after is None else after - before
    losses = None
    if scored:
        from stepwell.eval.controls import measure
        from stepwell.eval.local import LocalSubject

        assert isinstance(subject, LocalSubject), "a server's losses cannot be seen"
        with told_by_bar(console, "losses and controls", scored) as told:
            losses = measure(subject, questions, scored, told)
    marks = tuple(Marks.of(questions, one) for one in answers)
    several = passes > 1
    return Verdict(
        subject.name,
        tier,
        len(questions),
        marks,
        Matched.of(marks[0].strict, marks[-1].strict) if several else None,
        identical(answers[0], answers[-1]) if several else None,
        failed,
        losses,
    )


class Lines:
    """Prints how far something is: not more often than every 10 seconds, and at the end."""

    def __init__(self, console: Console, text: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._text, self._total, self._clock = console, text, total, clock
        self._began = self._said = clock()
        self._done = 0

    def __call__(self, more: int) -> None:
        self._done += more
        now = self._clock()
        if self._done < self._total and now - self._said < _SECONDS:
            return
        self._said = now
        self._console.print(
            f"{self._text}: {self._done} of {self._total} in {now - self._began:.0f} s", highlight=False
        )


@contextmanager
def told_by_bar(console: Console, text: str, total: int) -> Iterator[Told]:
    """A bar that moves on by what it is told; where that cannot be shown, a line now and then."""
    if not console.is_terminal:
        yield Lines(console, text, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda more: progress.advance(task, more)


def show(verdict: Verdict, console: Console) -> None:
    """For people."""
    console.print(pass_table(verdict.passes))
    if verdict.matched is not None:
        console.print(matched_table(verdict.matched))
        console.print(f"identical answers: {verdict.identical} of {verdict.questions}", highlight=False)
    failed = "not told" if verdict.loads_failed is None else str(verdict.loads_failed)
    line = f"last pass: {100 * verdict.served:.1f} % of prompt tokens from {verdict.tier.name.lower()}; failed loads: {failed}"
    console.print(line, highlight=False)
    if verdict.losses is not None:
        console.print(losses_table(verdict.losses))


def losses_table(losses: Losses) -> Table:
    table = Table(title=f"Loss of right answers, nats a token ({losses.questions} questions)", title_justify="left")
    for heading in ("", "loss", "more than resumed", "answers changed"):
        table.add_column(heading, justify="right")
    table.add_row("cold", f"{losses.cold:.5f}", f"{losses.cold - losses.resumed:+.1e}", "")
    table.add_row("resumed", f"{losses.resumed:.5f}", "", "")
    for name, (added, changed) in losses.controls.items():
        table.add_row(
            name.replace("_", " "), f"{losses.resumed + added:.5f}", f"{added:+.4f}", f"{100 * changed:.0f} %"
        )
    for name in losses.skipped:
        table.add_row(name.replace("_", " "), "", "", "nothing to change: this model has no such pages")
    return table
