"""Instructions that come apart from the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from stepwell.server.contents import text_of

_BETWEEN = "\n\n"
_ROLES = ("system", "developer")


def with_instructions(instructions: str, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages behind one system message, which holds `instructions` and whatever the messages themselves begin with.

    Most templates take one system message, and take it first.
    """
    leading = list(takewhile(lambda message: message["role"] in _ROLES, messages))
    texts = [instructions, *(text_of(message["content"], "messages") for message in leading)]
    said = _BETWEEN.join(text for text in texts if text)
    return [*([{"role": "system", "content": said}] if said else []), *map(dict, messages[len(leading) :])]
