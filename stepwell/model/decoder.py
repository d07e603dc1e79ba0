"""The decoder: embedding, layers, final norm, logits of the rows that ask for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.model.batch import Batch, Memory
from stepwell.model.config import HybridConfig
from stepwell.model.layers import Mixer, Mlp
from stepwell.ops.kernels import Kernels
from stepwell.ops.norm import rms_norm
from stepwell.ops.rotary import Rotary


@dataclass(frozen=True, slots=True)
class Layer:
    """Two residual halves; the norms are float32 [hidden]."""

    mixer_norm: Tensor
    mixer: Mixer
    mlp_norm: Tensor
    mlp: Mlp


class HybridDecoder:
    """Qwen3-Next or Qwen3.5, text only. Holds weights and nothing else: all state is in the memory it is given."""

    __slots__ = ("_embedding", "_head", "_kernels", "_layers", "_norm", "_rotary", "config", "device", "dtype")

    def __init__(
        self,
        config: HybridConfig,
        embedding: Tensor,
        layers: tuple[Layer, ...],
        norm: Tensor,
        head: Tensor,
        kernels: Kernels,
    ) -> None:
        self.config = config
        self.device = embedding.device
        self.dtype = embedding.dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._kernels = kernels
        self._rotary = Rotary(config.shape.head_dim, config.rotary_dim, config.rope_theta, embedding.device)

    @property
    def kernels(self) -> Kernels:
        """The backend; the batch's attention is planned with it."""
        return self._kernels

    @torch.inference_mode()
    def forward(self, batch: Batch, memory: Memory) -> Tensor:
        """Fold the batch into the memory; returns float32 logits [rows asked for, vocab]."""
        return self.logits(self.hidden(batch, memory))

    @torch.inference_mode()
    def hidden(self, batch: Batch, memory: Memory) -> Tensor:
        """Fold the batch into the memory; returns what `logits` reads of the rows asked for, [rows, hidden]."""
        eps, kernels = self.config.eps, self._kernels
        x = F.embedding(batch.tokens, self._embedding)
        angles = self._rotary(batch.positions)
        for layer in self._layers:
            x.add_(layer.mixer(rms_norm(x, layer.mixer_norm, eps), batch, memory, angles, kernels))
            x.add_(layer.mlp(rms_norm(x, layer.mlp_norm, eps)))
        return rms_norm(x.index_select(0, batch.asked), self._norm, eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [rows, vocab] of rows of `hidden`."""
        return F.linear(hidden, self._head).float()
