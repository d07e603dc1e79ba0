"""JSON files of a checkpoint, read with a bound."""

from __future__ import annotations

import json
from pathlib import Path

from stepwell.base.errors import ConfigError
from stepwell.base.shapes import Config

LONGEST_CONFIG = 1 << 20
"""Bytes of a file of settings; real ones have a few thousand."""
LONGEST_VOCABULARY = 1 << 27
"""Bytes of a file that lists the tokens of a vocabulary; real ones have up to some twenty million."""


def read_json(path: Path, longest: int) -> Config:
    """The object in a JSON file of at most `longest` bytes. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(longest + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; give the directory of a Hugging Face checkpoint"
        ) from error
    if len(text) > longest:
        raise ConfigError(f"{path} is longer than {longest} bytes: this is not a checkpoint's file")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return value
