"""Tensors of a checkpoint directory by their published names, read from safetensors files one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.model.cuts import Cut, Shape
from stepwell.model.files import read_json
from stepwell.model.safetensors_file import Entry, Reading, SafetensorsFile
from stepwell.model.staging import place_on

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
_READERS = 8
_AHEAD = 256 << 20
"""Bytes of tensors that are read before anyone asks: small ones would leave the disk idle in between."""
_CPU = torch.device("cpu")


class Checkpoint:
    """An open checkpoint; use it in `with`. Names are those of the text model, also where a vision wrapper was saved.

    The vision tower is left out, and so is the layer that drafts unless it is asked for. Tensors are made on `device`.
    """

    __slots__ = (
        "_ahead",
        "_asked",
        "_begun",
        "_coming",
        "_cuts",
        "_done",
        "_files",
        "_left_out",
        "_place",
        "_progress",
        "_threads",
        "_total",
        "_where",
        "directory",
    )

    def __init__(
        self,
        directory: Path,
        progress: Progress = lambda done, total: None,
        *,
        drafts: bool = False,
        device: torch.device = _CPU,
    ) -> None:
        """Reads headers only. `drafts`: with the layer that drafts. Raises ConfigError where a file is missing, damaged or outside
        of `directory`, or has no such layer."""
        self.directory = directory
        self._left_out = _VISION if drafts else (*_VISION, _DRAFTS)
        self._files: dict[str, SafetensorsFile] = {}
        self._where: dict[str, tuple[str, str]] = {}
        self._threads = ThreadPoolExecutor(_READERS, "weights")
        self._place = place_on(device, _READERS)
        self._cuts: dict[str, Cut] = {}
        self._coming: deque[str] = deque()
        self._asked: set[str] = set()
        self._begun: dict[str, Reading] = {}
        self._ahead = 0  # bytes of what has been begun and not asked for
        self._progress = progress
        self._done = self._total = 0
        try:
            for file in _shards(directory):
                self._files[file] = SafetensorsFile(directory / file)
                for name in self._files[file].entries:
                    self._add(name, file)
            if drafts and not any(name.startswith(_DRAFTS) for name in self._where):
                raise ConfigError(
                    f"{directory} has no {_DRAFTS} tensors: this checkpoint cannot draft;"
                    " leave out --num-speculative-tokens or --speculative-config"
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
        self._threads.shutdown(cancel_futures=True)
        while self._files:
            self._files.popitem()[1].close()

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def shape(self, name: str) -> Shape:
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        """The element type, as the format names it: "BF16", "F8_E4M3", …"""
        return self._entry(name).dtype

    def tensor(self, name: str) -> Tensor:
        """A copy of one tensor, or of the part of it that is wanted, as stored. Raises ConfigError where its file cannot be read."""
        reading = self._begun.pop(name, None)
        if reading is None:
            reading = self._begin(name)
        else:
            self._ahead -= reading.tensor.nbytes
        self._read_on()
        tensor = reading.result()
        self._done += tensor.nbytes
        self._progress(self._done, self._total)
        return tensor

    def matrix(self, name: str) -> Tensor:
        """The same: a checkpoint without FP8 has nothing but plain matrices."""
        return self.tensor(name)

    def share(self, cuts: Mapping[str, Cut]) -> None:
        """Only these parts of these tensors are wanted; call it before any tensor is read. Names that are not there are left out."""
        for name, cut in cuts.items():
            if name in self._where:
                self._cuts[name] = cut
                whole, shape = self._entry(name), self.shape(name)
                self._total -= (whole.end - whole.start) // shape[cut.axis] * (shape[cut.axis] - cut.count)

    def read_ahead(self, order: Iterable[str]) -> None:
        """Tell which tensors will be asked for, about in this order: each once. They are read ahead from now on."""
        self._coming.extend(name for name in order if name in self)
        self._read_on()

    def _entry(self, name: str) -> Entry:
        file, stored = self._where[name]
        return self._files[file].entries[stored]

    def _read_on(self) -> None:
        """Begin what comes next, as far as `_AHEAD` allows."""
        while self._coming and self._ahead < _AHEAD:
            name = self._coming.popleft()
            if name not in self._asked:
                self._begun[name] = reading = self._begin(name)
                self._ahead += reading.tensor.nbytes

    def _begin(self, name: str) -> Reading:
        self._asked.add(name)
        file, stored = self._where[name]
        return self._files[file].begin(stored, self._threads, self._place, self._cuts.get(name))

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
