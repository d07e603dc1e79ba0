"""Muon for the matrices, AdamW for the rest.

Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024: the momentum of a matrix is replaced by the nearest
orthogonal one before it is applied. Matrices of one shape are orthogonalised together. Steps are scaled so that one learning rate
serves both (Liu et al., "Muon is scalable for LLM training", 2025, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_ROUNDS = 5
_MOMENTUM = 0.95
_DECAY = 0.05
_SMALLEST = 32  # rows of a matrix that is worth it


class Optimiser:
    """Owns the momentum of every parameter. `step(rate)` applies gradients and clears them."""

    def __init__(self, network: nn.Module) -> None:
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in network.named_parameters():
            whole = parameter.ndim == 2 and min(parameter.shape) >= _SMALLEST and "embed" not in name
            (matrices if whole else rest).append(parameter)
        self._groups = [[p for p in matrices if p.shape == shape] for shape in sorted({p.shape for p in matrices})]
        self._momenta = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self._groups]
        self._rest = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=rest[0].is_cuda)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([_gradient(p) for p in group])
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            step = orthogonal(gradient.lerp_(momentum, _MOMENTUM))
            scale = 0.2 * max(group[0].shape) ** 0.5
            for parameter, one in zip(group, step.unbind(), strict=True):
                parameter.mul_(1 - rate * _DECAY).add_(one, alpha=-rate * scale)
        for options in self._rest.param_groups:
            options["lr"] = rate
        self._rest.step()

    def clear(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.grad = None


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "every matrix takes part in the loss"
    return parameter.grad


def orthogonal(x: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with singular values near 1: five rounds of a polynomial of fifth degree, in bfloat16."""
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x).bfloat16()
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        square = y @ y.mT
        y = 3.4445 * y + (-4.7750 * square + 2.0315 * square @ square) @ y
    return (y.mT if tall else y).float()
