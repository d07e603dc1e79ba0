"""FP8 matrices of a checkpoint, multiplied by their scales as they are read. Their form is in `fp8_format.py`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.base.units import format_size
from stepwell.model.checkpoint import Checkpoint
from stepwell.model.fp8_format import Fp8Format
from stepwell.model.safetensors_file import Shape

_E4M3 = "F8_E4M3"


class Fp8Weights:
    """The tensors of a checkpoint in which some matrices are stored in FP8; they are handed out multiplied by their scales."""

    __slots__ = ("_checkpoint", "_device", "_dtype", "_format", "_held", "_matrices", "_stored")

    def __init__(self, checkpoint: Checkpoint, stored: Fp8Format, dtype: torch.dtype, device: torch.device) -> None:
        """Matrices become `dtype`, on `device`."""
        self._checkpoint = checkpoint
        self._format = stored
        self._dtype = dtype
        self._device = device
        self._matrices = self._stored = self._held = 0

    def tensor(self, name: str) -> Tensor:
        """One tensor: an FP8 matrix as `dtype` on the device, any other as the checkpoint gives it."""
        values = self._checkpoint.tensor(name)
        if self._checkpoint.dtype(name) != _E4M3:
            return values
        scales = self._checkpoint.tensor(self._format.scales_of(name))
        matrix = dequantised(values.to(self._device), scales.to(self._device), self._format, self._dtype)
        self._matrices += 1
        self._stored += values.nbytes + scales.nbytes
        self._held += matrix.nbytes
        return matrix

    @property
    def note(self) -> str:
        """What has been handed out, and the memory that it takes, for people."""
        held = f"{format_size(self._held)} of {str(self._dtype).removeprefix('torch.')}"
        return f"{self._format}: {self._matrices:,} matrices of {format_size(self._stored)} are held as {held}"


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


def dequantised(values: Tensor, scales: Tensor, stored: Fp8Format, dtype: torch.dtype) -> Tensor:
    """e4m3 `values` […, out, in] times their `scales`, computed in float32 and rounded once to `dtype`."""
    *_, out, depth = values.shape
    columns = stored.columns or depth
    wide = scales.float().repeat_interleave(stored.rows, -2).narrow(-2, 0, out)
    return values.float().mul_(wide.repeat_interleave(columns, -1).narrow(-1, 0, depth)).to(dtype)
