"""Attention and its gradient against autograd through the explicit formula, on a CPU."""

from __future__ import annotations

import pytest
import torch

from stages.engine.attention import attention, attention_backward


def _formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int) -> torch.Tensor:
    """[n, Q × head_dim] of query [n, Q, head_dim], key and value [n, K, head_dim]."""
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
    q, k, v = (t.view(-1, length, *t.shape[1:]).transpose(1, 2) for t in (query, key, value))
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(later, float("-inf"))
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(len(query), -1)


@pytest.mark.parametrize(("heads", "length"), [((4, 2), 5), ((3, 3), 1), ((6, 2), 40)])
def test_attention_and_its_gradient_are_the_formulas(heads: tuple[int, int], length: int) -> None:
    torch.manual_seed(0)
    q, k = heads
    n, dim = 3 * length, 16
    leaves = [torch.randn(n, h, dim, requires_grad=True) for h in (q, k, k)]
    grad = torch.randn(n, q * dim)
    output = attention(*leaves, length)
    expected = _formula(*leaves, length)
    torch.testing.assert_close(output.rows(), expected, rtol=1e-5, atol=1e-5)
    grads = [
        g.view(n, h, -1, dim).sum(dim=2)
        for g, h in zip(attention_backward(output, grad), (q, k, k), strict=True)
    ]
    for ours, theirs in zip(grads, torch.autograd.grad(expected, leaves, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
