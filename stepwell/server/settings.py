"""Flags from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stepwell.base.errors import ConfigError

_LARGEST = 1 << 20


def read_settings(path: str, known: Mapping[str, bool]) -> dict[str, Any]:
    """Values by the name of the parameter, as in `{"max_queue": 64}`, from lines such as `max-queue = 64`.

    known  names that may stand there, and whether each takes a list
    Raises ConfigError: the file cannot be read, a name is unknown, or a value is of a kind that no flag takes.
    """
    settings: dict[str, Any] = {}
    for key, value in _load(path).items():
        name = key.replace("-", "_")
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0].replace('_', '-')}?" if close else ": write flags without their dashes"
            raise ConfigError(f"{path}: {key!r} is no flag{hint}")
        if name in settings:
            raise ConfigError(f"{path}: {key!r} is there twice, with - and with _: leave one out")
        settings[name] = _value(path, key, value, known[name])
    return settings


def _load(path: str) -> dict[str, Any]:
    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST:
            raise ConfigError(f"{path} has more than {_LARGEST:,} bytes: that is no file of flags")
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _value(path: str, key: str, value: object, many: bool) -> Any:
    if many:
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, str) for item in items):
            return items
        raise ConfigError(f"{path}: {key} must be a string or a list of strings")
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{path}: {key} must be a number, a string, true or false, not {type(value).__name__}")
    return value
