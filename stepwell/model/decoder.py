"""The decoder: embedding, layers, final norm, logits of the rows that ask for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.model.backend import Backend, Forward, Output, Prepared
from stepwell.model.batch import Behind, Memory
from stepwell.model.config import HybridConfig
from stepwell.model.drafter import DRAFT_WORDS, DraftBackend, Drafter, DraftForward
from stepwell.model.layers import Half, Norm
from stepwell.ops.linear import Linear


@dataclass(frozen=True, slots=True)
class Layer:
    """Two residual halves, each behind its norm."""

    mixer_norm: Norm
    mixer: Half
    mlp_norm: Norm
    mlp: Half


class HybridDecoder:
    """Qwen3-Next or Qwen3.5, text only. Holds weights and nothing else: all state is in the memory that a pass is planned with."""

    __slots__ = (
        "_draft_head",
        "_drafts",
        "_embedding",
        "_head",
        "_layers",
        "_norm",
        "backend",
        "config",
        "device",
        "drafter",
        "dtype",
        "notes",
    )

    def __init__(
        self,
        config: HybridConfig,
        embedding: Tensor,
        layers: tuple[Layer, ...],
        norm: Norm,
        head: Linear,
        backend: Backend,
        drafter: Drafter | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`backend` computes; it plans the passes that `hidden` takes. `notes` say what is special about the weights, for people."""
        self.config = config
        self.device = embedding.device
        self.dtype = embedding.dtype
        self.backend = backend
        self.drafter = drafter
        self.notes = notes
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        # asked once: what a protocol holds takes a tenth of a millisecond to find
        self._drafts = backend if drafter is not None and isinstance(backend, DraftBackend) else None
        self._draft_head = head if self._drafts is None else self._drafts.words(head, DRAFT_WORDS)

    @torch.inference_mode()
    def compute(self, forward: Forward) -> Output:
        """Compute a planned pass, and draw its tokens if it is plain.

        A decoder that drafts also keeps the draft layer's keys and values of all rows.
        """
        return forward.run(lambda: self._compute(forward))

    def prepare(self, memory: Memory, wanted: Prepared) -> None:
        """Have the backend record what steps will need."""
        self.backend.prepare(memory, self.compute, wanted)
        if self._drafts is not None:
            self._drafts.rehearse(memory, self._further, wanted)

    def _compute(self, forward: Forward) -> Output:
        residual = forward.embed(self._embedding)
        after = (*(layer.mixer_norm for layer in self._layers[1:]), self._norm)
        x = forward.norm(residual, self._layers[0].mixer_norm)
        for layer, then in zip(self._layers, after, strict=True):
            x = layer.mixer(forward, x, residual, layer.mlp_norm)
            x = layer.mlp(forward, x, residual, then)
        if self.drafter is not None:
            assert isinstance(forward, DraftForward), "a decoder that drafts has a backend that does"
            self.drafter.keep(forward, self._embedding, x)
            forward.carry(x)
        hidden = forward.asked(x)
        if not forward.sampled:
            return Output(hidden, hidden[:0], None)
        logits = self._head(hidden[: forward.sampled])
        return Output(hidden, logits, forward.draw(logits) if forward.plain else None)

    @torch.inference_mode()
    def guess(self, behind: Behind, memory: Memory) -> None:
        """Draft behind the last draw of each of these slots, into `memory.drafts`."""
        assert self._drafts is not None, "a decoder that drafts has a backend that does"
        self._drafts.guess(behind, memory, self._further)

    @torch.inference_mode()
    def _further(self, forward: DraftForward, hidden: Tensor) -> tuple[Tensor, Tensor]:
        assert self.drafter is not None
        hidden = self.drafter(forward, self._embedding, hidden)
        return hidden, self._draft_head(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [rows, vocab] of rows of `hidden`."""
        return self._head(hidden).float()
