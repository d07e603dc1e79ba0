"""GSM8K as prompts, and what counts as a right answer.

shots: Question … Answer …  ×n  │ context: other questions, this one's own │ Question: …  Answer:
└───────── the same for all ────┘
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.base.errors import ConfigError

_HERE = Path(__file__).parent
TEST = _HERE / "gsm8k-test.jsonl.gz"
SHOTS = _HERE / "gsm8k-shots.jsonl"
STOPS = ("\n\n", "Question:", "<|im_end|>")
"""Where an answer is over."""
_LARGEST = 1 << 26  # bytes of a file of questions
_CALCULATOR = re.compile(r"<<[^>]*>>")
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its worked answer, which ends in `#### number`."""

    question: str
    answer: str

    @property
    def number(self) -> str:
        return strict(self.answer) or ""

    def text(self) -> str:
        return f"Question: {self.question}\nAnswer: {self.answer}\n\n"


@dataclass(frozen=True, slots=True)
class Form:
    """How the task is put.

    questions  how many, from the first on          shots      solved problems before each, the same for all
    contexts   solved problems behind those, other ones for each question
    open_book  one of a question's contexts is the question itself, with its answer: for models too small to calculate
    marks      leave the calculator's marks (<<2+3=5>>) in solved problems, as they were published
    """

    questions: int
    shots: int
    contexts: int
    open_book: bool = False
    marks: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt; `gold` is the text that should follow it and `number` what it should end in."""

    prompt: str
    gold: str
    number: str


def read_problems(path: Path) -> list[Problem]:
    """Lines of `{"question", "answer"}`, gzipped where the name ends in .gz. Raises ConfigError."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        if len(data) > _LARGEST:
            raise ConfigError(f"{path} has {len(data):,} bytes: at most {_LARGEST:,} are read")
        lines = [json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip()]
        return [Problem(str(p["question"]).strip(), str(p["answer"]).strip()) for p in lines]
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise ConfigError(f'{path} is no file of lines {{"question": …, "answer": …}}: {error}') from error


def write_questions(form: Form, problems: Sequence[Problem], solved: Sequence[Problem]) -> list[Question]:
    """The prompts of `problems`; `solved` are those to be shown as shots. Raises ConfigError where there are too few."""
    if form.questions > len(problems):
        raise ConfigError(f"--questions {form.questions} of {len(problems)}: ask for fewer, or give --data with more")
    if form.shots > len(solved):
        raise ConfigError(f"--shots {form.shots} of {len(solved)} solved problems: ask for fewer")
    if form.contexts + 1 > len(problems):
        raise ConfigError(f"--contexts {form.contexts} of {len(problems)} problems: ask for fewer")
    clean = [p if form.marks else _plain(p) for p in problems]
    prefix = "".join((p if form.marks else _plain(p)).text() for p in solved[: form.shots])
    return [_question(form, prefix, clean, i) for i in range(form.questions)]


def _question(form: Form, prefix: str, problems: Sequence[Problem], own: int) -> Question:
    rng = random.Random(f"{form.seed}/{own}")
    others = [i for i in rng.sample(range(len(problems)), min(form.contexts + 1, len(problems))) if i != own]
    shown = others[: form.contexts]
    if form.open_book and shown:
        shown[rng.randrange(len(shown))] = own
    context = "".join(problems[i].text() for i in shown)
    problem = problems[own]
    return Question(f"{prefix}{context}Question: {problem.question}\nAnswer:", f" {problem.answer}", problem.number)


def _plain(problem: Problem) -> Problem:
    return Problem(problem.question, _CALCULATOR.sub("", problem.answer))


def ended(text: str) -> str:
    """The answer up to where the next question would begin."""
    places = [place for stop in STOPS if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def strict(text: str) -> str | None:
    """The number behind the first `####`; None where there is none. As in lm-evaluation-harness, `strict-match`."""
    found = _STRICT.search(text)
    return None if found is None else _bare(found.group(1))


def flexible(text: str) -> str | None:
    """The last number; None where there is none. As in lm-evaluation-harness, `flexible-extract`."""
    found = _FLEXIBLE.findall(text)
    return _bare(found[-1][0] or found[-1][1]) if found else None


def _bare(number: str) -> str:
    return re.sub(r"[,$]", "", number).removesuffix(".")
