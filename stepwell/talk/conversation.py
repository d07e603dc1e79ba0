"""Messages of a chat, as callers send them, turned into what a chat template renders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.talk.contents import TEXTS, Reader
from stepwell.talk.history import Message, earlier_calls, in_order
from stepwell.talk.order import BARE, Manners, ordered

_ROLES = {"developer": "system", "function": "tool"}  # the newer name, the older name


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template renders; the parts, by kind, that it cannot show; and the system texts that came first, as many as there were."""

    messages: tuple[Message, ...]
    left_out: Mapping[str, int]
    leading: tuple[str, ...] = ()


def conversation(given: Sequence[Mapping[str, Any]], manners: Manners, field: str = "messages") -> Conversation:
    """Contents as text, arguments of calls as objects, thoughts in `reasoning_content`, in an order that the template takes.

    Raises RequestError naming the message at fault; also where the last one asks for nothing but what this model cannot see.
    """
    reader = Reader()
    messages = [_message(message, f"{field}.{i}", reader) for i, message in enumerate(given)]
    if not messages:
        raise RequestError(f"{field} is empty: give at least one message", field)
    last = messages[-1]
    if last["role"] == "user" and last[BARE] and (len(messages) < 2 or messages[-2]["role"] != "tool"):
        name = f"{field}.{len(messages) - 1}.content"
        kinds = ", ".join(sorted(reader.left_out))
        raise RequestError(f"{name} holds no text: this model reads text alone, not {kinds}", name)
    leading = tuple(text for one in takewhile(_is_system, given) for text in _texts(one["content"]))
    return Conversation(tuple(ordered(in_order(messages), manners)), Counter(reader.left_out), leading)


def _is_system(message: Mapping[str, Any]) -> bool:
    return bool(_ROLES.get(message["role"], message["role"]) == "system")


def _texts(content: str | Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts of a content that has been read."""
    return (
        [content]
        if isinstance(content, str)
        else [str(part[TEXTS[part["type"]]]) for part in content if part["type"] in TEXTS]
    )


def _message(message: Mapping[str, Any], field: str, reader: Reader) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{field}.role must be a string such as 'user'", f"{field}.role")
    content = message.get("content")
    if content is None and role not in ("assistant", "tool", "function"):
        raise RequestError(f"{field}.content is missing", f"{field}.content")
    text, bare = ("", False) if content is None else reader.text(content, f"{field}.content")
    read = {name: value for name, value in message.items() if name not in ("tool_calls", "function_call")}
    read |= {"role": _ROLES.get(role, role), "content": text, BARE: bare}
    if calls := earlier_calls(message, field):
        read["tool_calls"] = calls
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str):
        read["reasoning_content"] = thought
    return read
