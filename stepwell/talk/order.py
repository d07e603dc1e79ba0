"""Messages in an order that a template takes.

    system system user … tool system … assistant      as clients send them
    └── one ─────┘          └── inside the result     as templates of Qwen3.5 and later take them

What leads is merged. What comes later goes into its neighbour in place: moved to the front it would empty the cache each time, and as
a user's message of its own it would make templates forget what the model thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from stepwell.talk.contents import Reader
from stepwell.talk.history import Message

_BETWEEN = "\n\n"
_TAG = "system-reminder"
# atomic: a block ends at its first closing mark for good, else many blocks before other text are divided in every possible way
_REMINDERS = re.compile(
    r"\s*(?>(?:<(system-reminder|system_reminder|environment_details|environment_context)>.*?</\1>\s*)+)", re.DOTALL
)
BARE = "_bare"
"""Marks messages that hold nothing but placeholders; gone once they are in order."""


@dataclass(frozen=True, slots=True)
class Manners:
    """What a template takes: system messages `anywhere`; conversations `without_user`."""

    anywhere: bool = False
    without_user: bool = False


def ordered(messages: Sequence[Message], manners: Manners) -> list[Message]:
    """The same conversation, in an order that the template takes."""
    out = list(messages) if manners.anywhere else _merged(messages)
    out = _folded(out, manners)
    if not manners.without_user and all(message["role"] != "user" for message in out):
        out = _with_user(out)
    return [{name: value for name, value in message.items() if name != BARE} for message in out]


def led_by(instructions: str, messages: Sequence[Message]) -> list[Message]:
    """The same messages behind one system message that holds `instructions` and whatever the messages themselves begin with, in parts
    where that is several texts."""
    leading = list(takewhile(lambda message: message["role"] in ("system", "developer"), messages))
    texts = [instructions, *(Reader().text(message["content"], "messages")[0] for message in leading)]
    said = [text for text in texts if text]
    if not said:
        return list(messages[len(leading) :])
    parts = [{"type": "text", "text": text} for text in (*(text + _BETWEEN for text in said[:-1]), said[-1])]
    content: Any = parts if len(parts) > 1 else said[0]
    return [{"role": "system", "content": content}, *messages[len(leading) :]]


def joined(texts: Sequence[str]) -> str:
    return _BETWEEN.join(text for text in texts if text)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """What leads as one message."""
    leading = list(takewhile(lambda message: message["role"] == "system", messages))
    if len(leading) < 2:
        return list(messages)
    return [{**leading[0], "content": joined([m["content"] for m in leading])}, *messages[len(leading) :]]


def _folded(messages: Sequence[Message], manners: Manners) -> list[Message]:
    out: list[Message] = []
    waiting: list[str] = []  # what belongs before the next message
    for message in messages:
        role, before = message["role"], out[-1]["role"] if out else None
        if role == "system" and before is not None and not manners.anywhere:
            text = _as_reminder(message["content"])
            if before in ("user", "tool"):
                out[-1] = _with(out[-1], behind=text)
            else:
                waiting.append(text)
            continue
        if role == "user" and before == "tool" and (message.get(BARE) or _REMINDERS.fullmatch(message["content"])):
            out[-1] = _with(out[-1], behind=message["content"])
            continue
        if waiting and role not in ("user", "tool"):
            out.append({"role": "user", "content": joined(waiting)})
        elif waiting:
            message = _with(message, ahead=joined(waiting))
        waiting = []
        out.append(message)
    return [*out, {"role": "user", "content": joined(waiting)}] if waiting else out


def _with(message: Message, ahead: str = "", behind: str = "") -> Message:
    return {**message, "content": joined([ahead, message["content"], behind]), BARE: False}


def _as_reminder(text: str) -> str:
    """What the system says within another's message."""
    return text if _REMINDERS.fullmatch(text) else f"<{_TAG}>\n{text}\n</{_TAG}>"


def _with_user(messages: Sequence[Message]) -> list[Message]:
    """A conversation in which nobody asks: instructions alone are the question, and before an answer stands an empty one."""
    if [message["role"] for message in messages] == ["system"]:
        return [{**messages[0], "role": "user"}]
    first = 1 if messages and messages[0]["role"] == "system" else 0
    return [*messages[:first], {"role": "user", "content": ""}, *messages[first:]]
