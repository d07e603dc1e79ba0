"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from stepwell.base.errors import ConfigError


def expect_folders(*paths: Path | None) -> None:
    """Raise ConfigError now where a file could not be written after hours of work."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.resolve().parent}")


def write_text(path: Path, text: str) -> None:
    """Write it. Raises ConfigError where that fails."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
