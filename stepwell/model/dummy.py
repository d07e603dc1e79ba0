"""Random weights of a config's shape, made where they are needed: for benchmarks of models whose files are not at hand.

They are scaled so that the model behaves like a trained one where it matters to a serving engine:

* the recurrent state decides the answer: every projection keeps unit variance, heads remember 1 to 100 tokens;
* experts are drawn evenly. A router sees a common direction in all tokens wherever something with a positive mean was added to the
  residual stream, and then prefers the experts that lie along it. The one source of that is the SiLU behind the convolution, so
  the convolution is small: there SiLU is nearly linear and its mean nearly zero;
* rounding stays small: the embedding is half as large as what a layer adds, so that one expert more or less is no other model. Where the
  head is the embedding it must be small instead, or the model would repeat its last token.

docs/log.md has the figures.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from stepwell.model import names
from stepwell.model.cuts import Cut, Shape
from stepwell.model.fp8_format import Fp8Format
from stepwell.ops.scaled import Matrix, packed

_CONV = 0.1
_EMBEDDING = 0.5
_TIED_EMBEDDING = 0.1
_MEMORY = 0.01, 1.0
"""Decay of the heads, slowest and fastest."""


class DummyWeights:
    """Tensors by their published names. The same seed gives the same values on the same kind of device."""

    __slots__ = ("_centred", "_cuts", "_device", "_dtype", "_expected", "_fp8", "_kept", "_seed")

    def __init__(
        self,
        expected: Mapping[str, Shape],
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        fp8: Fp8Format | None = None,
        kept: bool = False,
        cuts: Mapping[str, Cut] | None = None,
        centred: bool = True,
    ) -> None:
        """`expected` are the names and shapes of all tensors (`names.expected`); matrices are made as `dtype`.

        fp8      those that official packs store in FP8 are rounded to it, in this form; `kept`: and stay in it
        cuts     of these tensors only this part is wanted
        centred  weights of norms lie about zero, else about one
        """
        self._expected = expected
        self._dtype = dtype
        self._device = device
        self._seed = seed
        self._fp8 = fp8
        self._kept = kept
        self._cuts = cuts or {}
        self._centred = centred

    def matrix(self, name: str) -> Matrix:
        """Make one matrix, or a stack of them, on the device."""
        values = self.tensor(name)
        if self._fp8 is None or not names.official_fp8(name):
            return values
        if name in self._cuts:
            self._fp8.cut(name, self._cuts[name], self._expected[name])  # a block in two would have another scale
        stored = packed(values, self._fp8.rows, self._fp8.columns_in(values.shape[-1]))
        return stored if self._kept else stored.unpacked(self._dtype)

    def tensor(self, name: str) -> Tensor:
        """Make one tensor on the device, or the part of it that is wanted."""
        whole = self._whole(name)
        return self._cuts[name].of(whole) if name in self._cuts else whole

    def _whole(self, name: str) -> Tensor:
        shape = self._expected[name]
        # 32 bits: a CPU's generator looks at no more of its seed
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        if name.endswith("A_log"):
            heads = math.prod(shape)
            order = torch.randperm(heads, generator=generator, device=self._device)
            return torch.linspace(math.log(_MEMORY[0]), math.log(_MEMORY[1]), heads, device=self._device)[order].view(
                shape
            )
        mean, deviation = self._moments(name, shape)
        dtype = self._dtype if len(shape) > 1 else torch.float32
        return torch.empty(shape, dtype=dtype, device=self._device).normal_(mean, deviation, generator=generator)

    def _moments(self, name: str, shape: Shape) -> tuple[float, float]:
        """Mean and standard deviation of a tensor's values."""
        if name == names.EMBEDDING:
            return 0.0, _EMBEDDING if names.HEAD in self._expected else _TIED_EMBEDDING
        if name.endswith("conv1d.weight"):
            return 0.0, _CONV
        if name.endswith("dt_bias"):
            return 0.0, 0.5
        if name.endswith("linear_attn.norm.weight"):
            return 1.0, 0.1  # never centred at zero
        if len(shape) == 1:
            return 0.0 if self._centred else 1.0, 0.1
        return 0.0, shape[-1] ** -0.5
