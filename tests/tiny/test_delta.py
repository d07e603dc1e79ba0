"""The chunked delta rule against its definition, token by token, and its gradients against autograd's through that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tiny.delta import CHUNK, gated_delta_rule, inverted, unit


def by_token(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
    state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=k.dtype)
    rows = []
    for t in range(k.shape[2]):
        state = state * g[:, :, t, None, None].exp()
        error = v[:, :, t] - (k[:, :, t].unsqueeze(-2) @ state).squeeze(-2)
        state = state + k[:, :, t].unsqueeze(-1) * (beta[:, :, t, None] * error).unsqueeze(-2)
        rows.append((q[:, :, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, 2)


def inputs(tokens: int, alike: float) -> list[Tensor]:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, tokens, d) for d in (8, 8, 12))
    g, beta = -torch.rand(2, 2, tokens) * 0.3, torch.rand(2, 2, tokens)
    return [x.requires_grad_() for x in (q, k + alike, v, g, beta)]


@pytest.mark.parametrize(("alike", "chunks"), [(0.0, 2), (20.0, 2), (0.0, 3), (0.0, 24)])
def test_chunks_compute_what_the_rule_says_and_so_do_their_gradients(alike: float, chunks: int) -> None:
    given = inputs(chunks * CHUNK, alike)
    found, right = gated_delta_rule(*given), by_token(*given)
    torch.testing.assert_close(found, right, atol=2e-5, rtol=1e-4)
    weight = torch.randn_like(right)
    ours, theirs = (torch.autograd.grad((x * weight).sum(), given) for x in (found, right))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4 * float(other.abs().max()), rtol=1e-3)


def test_the_inverse_is_one_and_nearly_equal_keys_do_it_no_harm() -> None:
    system = torch.ones(1, CHUNK, CHUNK).tril(-1)
    one = torch.eye(CHUNK)
    torch.testing.assert_close(inverted(system)[0] @ (one + system[0]), one, atol=1e-5, rtol=0)
