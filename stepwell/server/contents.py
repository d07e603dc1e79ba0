"""What callers put into messages: text, or parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.base.errors import RequestError

TEXT = frozenset({"text"})


def text_of(content: object, field: str, kinds: frozenset[str] = TEXT) -> str:
    """Text of a content: a string, or parts of any of `kinds`, which are joined as they stand. Raises RequestError."""
    if isinstance(content, str):
        return content
    return "".join(text_in(part, name, kinds) for part, name in parts_of(content, field))


def parts_of(content: object, field: str) -> list[tuple[dict[str, Any], str]]:
    """The parts of a content that is a list, each with its own name. Raises RequestError."""
    if not isinstance(content, list):
        raise RequestError(f"{field} must be a string or a list of text parts", field)
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            message = f"{field}.{i} must be an object such as {{'type': 'text', 'text': '…'}}"
            raise RequestError(message, f"{field}.{i}")
    return [(part, f"{field}.{i}") for i, part in enumerate(content)]


def text_in(part: Mapping[str, Any], field: str, kinds: frozenset[str] = TEXT) -> str:
    """The text of a part, which must be of one of `kinds`. Raises RequestError."""
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise RequestError(f"{field} is of type {str(kind)[:40]!r}: only text is supported", field)
    return string(part, "text", field)


def string(value: Mapping[str, Any], name: str, field: str) -> str:
    """`value[name]`, which must be a string. Raises RequestError."""
    found = value.get(name)
    if not isinstance(found, str):
        raise RequestError(f"{field}.{name} must be a string", f"{field}.{name}")
    return found
