"""What computes: the interface between the model, which knows its layers, and kernels, which know a device.

    backend = …                             places weights, owns static buffers
    forward = backend.plan(batch, …)        once a step: everything that does not depend on the layer
    forward.attention(layer, x, …)          once a layer: no host synchronisation in here

The backend in plain torch (`torch_backend.py`) is the reference and serves CPUs; another is another class with these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from stepwell.model.batch import Batch, Longs, Memory, States
    from stepwell.model.layers import Attention, DeltaNet, DenseMlp, Experts, Norm
from stepwell.ops.linear import Linear, LinearStack
from stepwell.ops.scaled import Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What a pass leaves: `hidden` [rows asked for, hidden], `logits` [sampled, vocab] in the model's type, and the tokens drawn from them,
    int64 [sampled]; None where the pass is not plain. A later pass may write to them."""

    hidden: Tensor
    logits: Tensor
    tokens: Tensor | None

    def copied(self) -> Output:
        """The same in memory of its own."""
        return Output(self.hidden.clone(), self.logits.clone(), None if self.tokens is None else self.tokens.clone())

    @classmethod
    def joined(cls, parts: Sequence[Output]) -> Output:
        """Rows end to end."""
        if len(parts) == 1:
            return parts[0]
        tokens = [part.tokens for part in parts if part.tokens is not None]
        hidden, logits = (torch.cat(rows) for rows in zip(*((part.hidden, part.logits) for part in parts), strict=True))
        return cls(hidden, logits, torch.cat(tokens) if len(tokens) == len(parts) else None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a backend is to record before the first request.

    rows      numbers of decodes for each of which there is a pass; none: decodes are computed as they come
    prompts   numbers of prompt tokens, multiples of 64; none: as they come
    width     pages of the longest block table
    fixed     prompts are computed in windows of the one size in `prompts`, whatever else is in the step: to the bit
    graphs    passes are captured in graphs, where the device has them
    """

    rows: tuple[int, ...]
    prompts: tuple[int, ...]
    width: int
    fixed: bool = False
    graphs: bool = True


class Forward(Protocol):
    """One planned pass. Every operation works on all rows of the batch.

    sampled   of the rows asked for, how many draw a token; the others are scored
    plain     their tokens are drawn from the model's own logits

    The operations of half a layer share their form: `x` [rows, hidden] is the normed residual, what they compute is added to
    `residual` in place, and they return that residual normed by `then`.
    """

    @property
    def sampled(self) -> int: ...

    @property
    def plain(self) -> bool: ...

    def run(self, body: Callable[[], Output]) -> Output:
        """Compute the pass: `body` calls the operations below for all layers, `asked` and, where the pass is plain, `draw`. A backend that
        has captured an equal pass replays that instead, and does not call `body`."""

    def embed(self, table: Tensor) -> Tensor:
        """Rows of `table` [vocab, hidden] for the batch's tokens: the first residual, [rows, hidden]."""

    def norm(self, residual: Tensor, norm: Norm) -> Tensor:
        """The residual, normed."""

    def attention(self, layer: Attention, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        """Norm and rotate queries and keys, store keys and values in their pages, attend, gate, project."""

    def delta_net(self, layer: DeltaNet, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        """Convolve, fold the delta rule, norm and gate, project. Live states move on; checkpoints receive the states at cuts."""

    def mlp(self, layer: DenseMlp, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        """A gated MLP."""

    def experts(self, layer: Experts, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        """A mixture of experts with its shared expert."""

    def asked(self, x: Tensor) -> Tensor:
        """The rows whose logits are wanted."""

    def draw(self, logits: Tensor) -> Tensor:
        """A token for each of the first `sampled` rows asked for, from its logits [sampled, vocab]: int64 [sampled], NO_TOKEN where a row's
        largest logit is not finite. Each live slot remembers its own (`Memory.draws`). The logits may be written to."""


class Backend(Protocol):
    """Places weights and plans passes."""

    def holds(self, rows: int, columns: int) -> bool:
        """Whether FP8 matrices in which so many rows and columns share a scale are multiplied as they are stored.
        Others are to be unpacked."""

    def linear(self, weight: Matrix, tail: Tensor | None = None) -> Linear:
        """The matrix [out, in] in the form that this backend multiplies with; takes the tensor over. FP8 only in blocks that it `holds`.

        tail   further rows of an FP8 matrix, in the model's type
        """

    def tied(self, table: Tensor) -> Linear:
        """The embedding table [vocab, hidden] as the head; the table stays as it is and is not copied."""

    def stack(self, weights: Matrix) -> LinearStack:
        """The same for the matrices [experts, out, in] of all experts."""

    @property
    def names(self) -> tuple[str, ...]:
        """Which kernels compute what, for people; what is missing is named with what is used instead."""

    def upload(self, arrays: Sequence[Longs]) -> list[Tensor]:
        """The arrays on the device, as int64. Nothing waits for the device; the arrays may change afterwards."""

    def download(self, values: Tensor) -> Tensor:
        """The values on the host, there once the device has got to what follows. Nothing waits here; read them behind an event."""

    def prepare(self, memory: Memory, compute: Callable[[Forward], Output], wanted: Prepared) -> None:
        """Compile and record what steps will need. `compute` runs a planned pass. Called once, before the first request; spare slot and
        page are all that it may write to."""

    def plan(self, batch: Batch, memory: Memory, checkpoints: States) -> Forward:
        """Bind a pass to its batch. `checkpoints` has a column for each cut: conv [layers, cuts, …], recurrent [layers, cuts, …].

        Moves the slots' counts on (`memory.committed`, `pending`); a backend that folds at once and reads no count may leave them.
        The batch's arrays are read here, not later. Tokens that are LAST_DRAW are read from `memory.draws` on the device.
        """
