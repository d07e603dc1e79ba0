"""The conversation itself: questions, answers, and the commands between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from stepwell.base.errors import RequestError, StepwellError
from stepwell.chat.conversation import Branches, Conversation
from stepwell.chat.keyboard import Keyboard
from stepwell.chat.screen import AnswerScreen, meter
from stepwell.chat.talkers import Talker

COMMANDS = {
    "/new": "starts afresh",
    "/system": "TEXT starts afresh with instructions",
    "/branch": "[N] goes on from before question N, the last one if you leave it out; what was said stays on its own branch",
    "/branches": "lists the branches",
    "/switch": "N goes to branch N",
    "/save": "FILE writes this branch: messages of the API where FILE ends in .json, else Markdown",
    "/help": "says this",
    "/quit": "ends, as Ctrl-D does",
}
_KEYS = "Ctrl-C stops an answer; arrow keys recall what you typed; Alt-Enter begins a new line."
_SHOWN = 48


@dataclass(slots=True)
class Session:
    """Whoever answers, where it is shown, and what was said."""

    talker: Talker
    console: Console
    system: str
    branches: Branches

    @classmethod
    def begin(cls, talker: Talker, console: Console, system: str = "") -> Session:
        return cls(talker, console, system, Branches((Conversation.under(system),)))

    def talk(self, keyboard: Keyboard) -> None:
        """Until the user has had enough."""
        self.console.print(f"[bold]{escape(self.talker.name)}[/]", highlight=False)
        self._note(f"{' · '.join(COMMANDS)}. {_KEYS}")
        while (line := keyboard.line(self.below)) is not None and line != "/quit":
            if not line:
                continue
            try:
                if line.startswith("/"):
                    self._obey(line)
                else:
                    self._ask(line)
            except StepwellError as error:
                self.console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)

    def below(self) -> str:
        """What stands under the line that is typed: how full the context is, and which branch this is."""
        branches = self.branches
        many = f"branch {branches.at + 1} of {len(branches.all)}" if len(branches.all) > 1 else ""
        full = meter(branches.current.tokens, self.talker.context)
        return " · ".join(part for part in (full, many) if part) or "a new conversation"

    def _obey(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/new" | "/system":
                self.system = rest if word == "/system" else self.system
                self.branches = Branches((Conversation.under(self.system),))
                self._note("a new conversation")
            case "/branch":
                asked = self.branches.current.questions
                question = _number(rest, "question") if rest else len(asked)
                self.branches = self.branches.branched(question)
                self._note(f"branch {self.branches.at + 1}, before question {question}: {_short(asked[question - 1])}")
            case "/branches":
                for at, branch in enumerate(self.branches.all):
                    mark = "→" if at == self.branches.at else " "
                    asked = branch.questions
                    self._note(
                        f"{mark} {at + 1}: {len(asked)} questions{', last: ' + _short(asked[-1]) if asked else ''}"
                    )
            case "/switch":
                self.branches = self.branches.switched(_number(rest, "branch"))
                self._note(self.below())
            case "/save":
                self._save(rest)
            case _:
                for name, text in COMMANDS.items():
                    self._note(f"{name:10} {text}")
                self._note(_KEYS)

    def _ask(self, text: str) -> None:
        """One answer, shown as it comes. A stopped answer stays as far as it came; a question without one is dropped."""
        conversation = self.branches.current.asked(text)
        pieces = self.talker.answer(conversation.messages)
        tokens = conversation.tokens
        with AnswerScreen(self.console) as screen:
            try:
                while True:
                    screen.show(next(pieces))
            except StopIteration as end:
                note, tokens = end.value.line(), end.value.context
            except KeyboardInterrupt:
                note = "stopped"
            finally:
                pieces.close()
        full = meter(tokens, self.talker.context)
        self._note(" · ".join(part for part in (note, full) if part))
        if screen.text:
            self.branches = self.branches.going_on(conversation.answered(screen.text, tokens))

    def _save(self, name: str) -> None:
        if not name:
            raise RequestError("/save needs a file, such as talk.md or talk.json")
        file, conversation = Path(name).expanduser(), self.branches.current
        try:
            text = conversation.as_json() if file.suffix == ".json" else conversation.as_markdown()
            file.write_text(text, "utf-8")
        except OSError as error:
            raise RequestError(f"cannot write {file}: {error.strerror}") from error
        self._note(f"written to {file}: {len(conversation.said)} messages")

    def _note(self, text: str) -> None:
        self.console.print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True)


def _number(text: str, what: str) -> int:
    """Raises RequestError."""
    if not text.isdecimal():
        raise RequestError(f"{what} must be a number, not {text!r}")
    return int(text)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + " …"
