"""FP8 matrices of a checkpoint (`fp8_format.py`): kept as they are stored, or multiplied by their scales as they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.base.units import format_size
from stepwell.model import names
from stepwell.model.checkpoint import Checkpoint
from stepwell.model.config import HybridConfig
from stepwell.model.cuts import Cut, Shape
from stepwell.model.fp8_format import Fp8Format
from stepwell.ops.scaled import Matrix, Scaled

_E4M3 = "F8_E4M3"


class Fp8Weights:
    """The tensors of a checkpoint in which some matrices are stored in FP8."""

    __slots__ = ("_checkpoint", "_device", "_dtype", "_format", "_held", "_kept", "_matrices", "_stored")

    def __init__(
        self, checkpoint: Checkpoint, stored: Fp8Format, dtype: torch.dtype, device: torch.device, kept: bool
    ) -> None:
        """FP8 matrices are put on `device`; unless they are `kept` as they are, they become `dtype`."""
        self._checkpoint = checkpoint
        self._format = stored
        self._dtype = dtype
        self._device = device
        self._kept = kept
        self._matrices = self._stored = self._held = 0

    def tensor(self, name: str) -> Tensor:
        """One tensor: an FP8 matrix as `dtype` on the device, any other as the checkpoint gives it."""
        found = self._matrix(name, False)
        assert not isinstance(found, Scaled)
        return found

    def matrix(self, name: str) -> Matrix:
        """The same; an FP8 matrix as it is stored, if those are kept."""
        return self._matrix(name, self._kept)

    def _matrix(self, name: str, kept: bool) -> Matrix:
        values = self._checkpoint.tensor(name)
        if self._checkpoint.dtype(name) != _E4M3:
            return values
        scales = self._checkpoint.tensor(self._format.scales_of(name))
        block = self._format.rows, self._format.columns_in(values.shape[-1])
        stored = Scaled(values.to(self._device), scales.to(self._device, torch.float32), *block)
        matrix = stored if kept else stored.unpacked(self._dtype)
        self._matrices += 1
        self._stored += values.nbytes + scales.nbytes
        self._held += matrix.nbytes
        return matrix

    @property
    def note(self) -> str:
        """What has been handed out, and the memory that it takes, for people."""
        matrices = f"{self._format}: {self._matrices:,} matrices of {format_size(self._stored)} are"
        if self._kept:
            return f"{matrices} multiplied as they are stored"
        return f"{matrices} held as {format_size(self._held)} of {str(self._dtype).removeprefix('torch.')}"


def cuts_of_scales(checkpoint: Checkpoint, stored: Fp8Format, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
    """`cuts`, and those of the scales of matrices that are stored in FP8. Raises ConfigError where a block would be cut in two."""
    scales: dict[str, Cut] = {}
    for name, cut in cuts.items():
        if name in checkpoint and checkpoint.dtype(name) == _E4M3:
            own = stored.cut(name, cut, checkpoint.shape(name))
            if own is not None:
                scales[stored.scales_of(name)] = own
    return {**cuts, **scales}


def weight_bytes(config: HybridConfig, width: int, kept: bool) -> int:
    """Bytes of all weights with `width` bytes an element; `kept`: what official packs store in FP8 stays in it, where the model is such."""
    shape, total = config.shape, 0
    for name, size in names.expected(shape, frozenset(names.layer_prefixes(shape))).items():
        if kept and config.fp8 is not None and names.official_fp8(name):
            total += math.prod(size) + 4 * math.prod(config.fp8.scales_shape(size))
        else:
            total += math.prod(size) * width
    return total


def with_scales(checkpoint: Checkpoint, stored: Fp8Format | None, expected: Mapping[str, Shape]) -> dict[str, Shape]:
    """`expected`, and the scales of those tensors that are stored in FP8. Raises ConfigError where values or scales lack the other."""
    scales: dict[str, Shape] = {}
    for name, shape in expected.items():
        if name not in checkpoint:
            continue
        own = None if stored is None else stored.scales_of(name)
        scaled, fp8 = own in checkpoint, checkpoint.dtype(name) == _E4M3
        if fp8 != scaled:
            kind = "FP8" if fp8 else checkpoint.dtype(name)
            scales_are = f"{'no ' if fp8 else ''}scales {own}" if own else "no quantization_config in config.json"
            raise ConfigError(f"{checkpoint.directory} holds {name} as {kind}, with {scales_are}: the pack is damaged")
        if stored is not None and own in checkpoint:
            scales[stored.scales_of(name)] = stored.scales_shape(shape)
    return {**expected, **scales}
