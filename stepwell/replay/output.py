"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from stepwell.base.errors import ConfigError


def write_text(path: Path, text: str) -> None:
    """Write it. Raises ConfigError where that fails."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
