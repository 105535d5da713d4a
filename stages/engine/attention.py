"""Causal attention with grouped queries, and its gradient: PyTorch's own, and one kernel for short sequences.

PyTorch's deterministic gradient takes several launches, and copies keys and values to every query head. A
sequence that fits in one tile needs neither the running softmax nor its stored sums: one launch does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stages.engine.ops import fused, next_power

_SHORT = 128
_SIZES = (16, 32, 64, 128)  # of a head, that the kernel takes


@dataclass
class AttentionOutput:
    """What the gradient needs; tensors are [batch, heads, length, head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    result: torch.Tensor
    """With an autograd graph of its own, unless the sequence is short."""

    def rows(self) -> torch.Tensor:
        """The result as [batch × length, heads × head_dim]."""
        batch, heads, length, dim = self.result.shape
        return self.result.detach().transpose(1, 2).reshape(batch * length, heads * dim)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int) -> AttentionOutput:
    """Of query [n, Q, head_dim], key and value [n, K, head_dim]; n is batch × length."""
    query, key, value = (
        t.view(-1, length, *t.shape[1:]).transpose(1, 2).detach() for t in (query, key, value)
    )
    graph = not _one_tile(query, length)
    with torch.set_grad_enabled(graph):
        for leaf in (query, key, value):
            leaf.requires_grad_(graph)
        result = F.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, enable_gqa=query.shape[1] != key.shape[1]
        )
    return AttentionOutput(query, key, value, result)


def attention_backward(
    kept: AttentionOutput, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value from that of `rows`.

    Returns:
        Each [n, heads, head_dim]; those of key and value may have Q heads, of which Q / K neighbours are to
        be summed.
    """
    batch, heads, length, dim = kept.result.shape
    if not _one_tile(kept.query, length):
        grad = grad.view(batch, length, heads, dim).transpose(1, 2)
        found = torch.autograd.grad(kept.result, (kept.query, kept.key, kept.value), grad)
        return tuple(t.transpose(1, 2).reshape(batch * length, -1, dim) for t in found)  # type: ignore[return-value]
    from stages.engine import kernels

    out = grad.new_empty(3, batch * length, heads, dim)
    kernels.attention_backward[(heads, batch)](
        kept.query, kept.key, kept.value, grad, *out, length, kept.value.stride(2), heads, kept.key.shape[1], dim**-0.5,
        L=max(16, next_power(length)), DIM=dim, num_warps=8,
    )  # fmt: skip
    return out[0], out[1], out[2]


def _one_tile(query: torch.Tensor, length: int) -> bool:
    return fused(query) and query.dtype != torch.float32 and length <= _SHORT and query.shape[-1] in _SIZES
