"""Tensors of a checkpoint directory by their published names, read from safetensors files one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.model.files import read_json
from stepwell.model.safetensors_file import SafetensorsFile, Shape

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes that are done and bytes in all, after each tensor."""

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_LONGEST_INDEX = 64 << 20
_WRAPPED = "model.language_model."
_VISION = ("model.visual.", "visual.")
_DRAFTS = "mtp."
_NAMED = 5
"""Names that an error lists before it counts the rest."""
_READERS = 4


class Checkpoint:
    """An open checkpoint; use it in `with`. Names are those of the text model, also where a vision wrapper was saved.

    The vision tower is left out, and so is the layer that drafts unless it is asked for.
    """

    __slots__ = ("_done", "_files", "_left_out", "_progress", "_threads", "_total", "_where", "directory")

    def __init__(self, directory: Path, progress: Progress = lambda done, total: None, *, drafts: bool = False) -> None:
        """Reads headers only. `drafts`: with the layer that drafts. Raises ConfigError where a file is missing, damaged or outside
        of `directory`, or has no such layer."""
        self.directory = directory
        self._left_out = _VISION if drafts else (*_VISION, _DRAFTS)
        self._files: dict[str, SafetensorsFile] = {}
        self._where: dict[str, tuple[str, str]] = {}
        self._threads = ThreadPoolExecutor(_READERS, "weights")
        self._progress = progress
        self._done = self._total = 0
        try:
            for file in _shards(directory):
                self._files[file] = SafetensorsFile(directory / file)
                for name in self._files[file].entries:
                    self._add(name, file)
            if drafts and not any(name.startswith(_DRAFTS) for name in self._where):
                raise ConfigError(
                    f"{directory} has no {_DRAFTS} tensors: this checkpoint cannot draft; serve it without --speculative-config"
                )
        except ConfigError:
            self.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; tensors already read stay."""
        self._threads.shutdown()
        while self._files:
            self._files.popitem()[1].close()

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def shape(self, name: str) -> Shape:
        file, stored = self._where[name]
        return self._files[file].entries[stored].shape

    def dtype(self, name: str) -> str:
        """The element type, as the format names it: "BF16", "F8_E4M3", …"""
        file, stored = self._where[name]
        return self._files[file].entries[stored].dtype

    def tensor(self, name: str) -> Tensor:
        """A copy of one tensor, as stored, on the CPU. Raises ConfigError where its file cannot be read."""
        file, stored = self._where[name]
        tensor = self._files[file].tensor(stored, self._threads)
        self._done += tensor.nbytes
        self._progress(self._done, self._total)
        return tensor

    def check(self, expected: Mapping[str, Shape]) -> None:
        """Raises ConfigError naming what is missing, too much or of the wrong shape."""
        missing = [name for name in expected if name not in self._where]
        extra = [name for name in self._where if name not in expected]
        wrong = [
            f"{name} {list(self.shape(name))} instead of {list(shape)}"
            for name, shape in expected.items()
            if name in self._where and self.shape(name) != shape
        ]
        faults = [
            f"{what}: {_listed(names)}"
            for what, names in (("missing", missing), ("unexpected", extra), ("of the wrong shape", wrong))
            if names
        ]
        if faults:
            raise ConfigError(f"{self.directory} does not fit its config.json; tensors {'; '.join(faults)}")

    def _add(self, stored: str, file: str) -> None:
        if stored.startswith(self._left_out):
            return
        name = "model." + stored.removeprefix(_WRAPPED) if stored.startswith(_WRAPPED) else stored
        if name in self._where:
            other = self._where[name]
            raise ConfigError(f"{self.directory} holds {name} twice: {other[1]} in {other[0]}, {stored} in {file}")
        self._where[name] = (file, stored)
        entry = self._files[file].entries[stored]
        self._total += entry.end - entry.start


def _shards(directory: Path) -> list[str]:
    if not (directory / _INDEX).exists():
        if not (directory / _SINGLE).exists():
            raise ConfigError(
                f"{directory} has neither {_SINGLE} nor {_INDEX}: only safetensors checkpoints are supported; "
                "--load-format dummy makes random weights of the config's shape"
            )
        return [_SINGLE]
    weights = read_json(directory / _INDEX, _LONGEST_INDEX).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise ConfigError(f"{directory / _INDEX} needs a weight_map from names to files")
    files = sorted(set(weights.values()))
    for file in files:
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ConfigError(f"{directory / _INDEX} names {file!r}: files must be .safetensors in the same directory")
    return files


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
