"""What real programs sent, made into calls again: `sent/` holds their bodies with the length of each text in its place. Those of Roo Code
were made by its client library alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SENT = Path(__file__).parent / "sent"
PROGRAMS = tuple(sorted(path.stem for path in SENT.glob("*.json")))
_TEXT = re.compile(r"<str:(\d+)>")
_WORDS = "the well is deep and the water in it is cold, so they say; "


@dataclass(frozen=True, slots=True)
class Sent:
    """One call. `kind`: main, sub-agent, title, compaction, or nothing where it generates nothing."""

    method: str
    path: str
    kind: str
    headers: tuple[str, ...]
    body: dict[str, Any] | None


def sent_by(program: str, longest: int = 80) -> Iterator[Sent]:
    """The calls of one program in their order, with made-up texts of at most `longest` characters."""
    before: dict[str, list[Any]] = {}
    for call in json.loads((SENT / f"{program}.json").read_text("utf-8")):
        body = call["body"]
        if body is not None:
            for key, items in body.items():
                if isinstance(items, list):
                    body[key] = before[key] = _whole(items, before.get(key, []))
            body = _spoken(body, longest)
        yield Sent(call["method"], call["path"], call["kind"], tuple(call["headers"]), body)


def _whole(items: list[Any], before: list[Any]) -> list[Any]:
    """The list, whose beginning may be told by that of the call before."""
    if items and isinstance(items[0], dict) and set(items[0]) == {"same"}:
        return [*before[: items[0]["same"]], *items[1:]]
    return items


def _spoken(value: Any, longest: int) -> Any:
    match value:
        case dict():
            return {key: _spoken(inner, longest) for key, inner in value.items()}
        case list():
            return [_spoken(item, longest) for item in value]
        case str():
            return _TEXT.sub(lambda found: _text(min(int(found[1]), longest)), value)
        case _:
            return value


def _text(length: int) -> str:
    return (_WORDS * (length // len(_WORDS) + 1))[:length]
