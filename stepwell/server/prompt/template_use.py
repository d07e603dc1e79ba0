"""How the chat template is used, as the flags of a server say it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.base.errors import ConfigError

_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """Uses of the chat template.

    text        the template, in place of the checkpoint's own; None: that one
    variables   what it is told where a call says nothing
    preserve    it is told to keep the thoughts of earlier turns, where it can be
    plain       words that are tokens of their own are only text where they stand in contents
    look_ahead  while nothing else is to be done, a conversation is computed as its next turn will render it
    """

    text: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    preserve: bool = True
    plain: bool = True
    look_ahead: bool = True


def template_use(values: Mapping[str, Any]) -> TemplateUse:
    """From the flags by name. Raises ConfigError, naming the flag."""
    return TemplateUse(
        None if values["chat_template"] is None else _text(values["chat_template"]),
        {} if values["default_chat_template_kwargs"] is None else _variables(values["default_chat_template_kwargs"]),
        values["preserve_thinking"],
        values["plain_content"],
        values["look_ahead"],
    )


def _text(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {path}: {error}: give the path of a Jinja template") from error
    if len(text) > _LARGEST:
        raise ConfigError(f"--chat-template {path} has more than {_LARGEST:,} characters: that is no template")
    return text


def _variables(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--default-chat-template-kwargs is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("--default-chat-template-kwargs must be a JSON object such as '{\"enable_thinking\": false}'")
    return value
