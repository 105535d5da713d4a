"""Causal attention with grouped queries, and its gradient: PyTorch's own, or one kernel for short sequences.

PyTorch's deterministic gradient takes several launches and copies keys and values to every query head. A
sequence that fits in one tile needs neither the running softmax nor its stored sums: one launch is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stages.engine.ops import next_power_of_two, uses_triton

_MAX_TILE = 128  # tokens
_HEAD_DIMS = (16, 32, 64, 128)  # that the kernel supports


@dataclass
class AttentionOutput:
    """What the gradient needs; tensors are [batch, heads, length, head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    result: torch.Tensor
    """With an autograd graph of its own, unless the kernel computes the gradient."""

    def rows(self) -> torch.Tensor:
        """The result as [batch × length, heads × head_dim]."""
        batch, heads, length, dim = self.result.shape
        return self.result.detach().transpose(1, 2).reshape(batch * length, heads * dim)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, length: int) -> AttentionOutput:
    """Attention of query [n, Q, head_dim], key and value [n, K, head_dim]; n is batch × length."""
    query, key, value = (
        t.view(-1, length, *t.shape[1:]).transpose(1, 2).detach() for t in (query, key, value)
    )
    needs_graph = not _fits_one_tile(query, length)
    with torch.set_grad_enabled(needs_graph):
        for leaf in (query, key, value):
            leaf.requires_grad_(needs_graph)
        result = F.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, enable_gqa=query.shape[1] != key.shape[1]
        )
    return AttentionOutput(query, key, value, result)


def attention_backward(
    output: AttentionOutput, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value from that of `rows`.

    Returns:
        Each [n, heads, head_dim]. Those of key and value may have Q heads: each group of Q / K neighbours
        belongs to one head and is still to be summed.
    """
    batch, heads, length, dim = output.result.shape
    if not _fits_one_tile(output.query, length):
        grad = grad.view(batch, length, heads, dim).transpose(1, 2)
        grads = torch.autograd.grad(output.result, (output.query, output.key, output.value), grad)
        query, key, value = (t.transpose(1, 2).reshape(batch * length, -1, dim) for t in grads)
        return query, key, value
    from stages.engine import layer_kernels

    out = grad.new_empty(3, batch * length, heads, dim)
    layer_kernels.attention_backward[(heads, batch)](
        output.query, output.key, output.value, grad, *out, length, output.value.stride(2), heads,
        output.key.shape[1], dim**-0.5, L=max(16, next_power_of_two(length)), DIM=dim, num_warps=8,
    )  # fmt: skip
    return out[0], out[1], out[2]


def _fits_one_tile(query: torch.Tensor, length: int) -> bool:
    supported = query.dtype != torch.float32 and query.shape[-1] in _HEAD_DIMS
    return uses_triton(query) and supported and length <= _MAX_TILE
