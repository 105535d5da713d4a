"""The operations of a layer between its matrix products, and the gradient of a weight.

Triton kernels compute them on CUDA, plain PyTorch elsewhere; the plain code is the formula.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stages.memory.limits import MAX_PARTIAL_SUMS
from stages.qwen3.model import rotate

RotaryTable = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, each [length, head_dim] in the compute dtype."""

_MAX_KERNEL_TOKENS = 256  # of `weight_grad`: with more, arithmetic is the limit and cuBLAS is faster
_TILE = (64, 128)


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def uses_triton(x: torch.Tensor) -> bool:
    """Whether the Triton kernels are used for this tensor."""
    return x.is_cuda


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) × weight for rows [n, size]; see `stages.qwen3.model.RMSNorm`."""
    if not uses_triton(x):
        return F.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype) * weight.to(x.dtype)
    from stages.engine import layer_kernels

    out = torch.empty_like(x)
    layer_kernels.rms_forward[(len(x),)](
        x, weight, out, x.shape[1], eps, BLOCK=next_power_of_two(x.shape[1]), num_warps=8
    )
    return out


def rms_norm_backward(
    x: torch.Tensor, weight: torch.Tensor, eps: float, grad: torch.Tensor, residual: torch.Tensor,
    weight_grad: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """residual + gradient of x [n, size].

    Args:
        residual: [n, size]; may be overwritten.
        weight_grad: float32 [size], written.
    """
    rows, size = x.shape
    if not uses_triton(x):
        value, g = x.float(), grad.float()
        root = torch.rsqrt(value.square().mean(dim=1, keepdim=True) + eps)
        normed = value * root
        scaled = g * weight.float()
        inner = root * (scaled - normed * (scaled * normed).mean(dim=1, keepdim=True))
        torch.sum(g * normed, dim=0, out=weight_grad)
        return (residual.float() + inner).to(x.dtype)
    from stages.engine import layer_kernels

    programs = min(rows, MAX_PARTIAL_SUMS)
    partial = torch.empty(programs, size, dtype=torch.float32, device=x.device)
    layer_kernels.rms_backward[(programs,)](
        x, weight, grad, residual, residual, partial, rows, size, eps, BLOCK=next_power_of_two(size),
        num_warps=8,
    )  # fmt: skip
    torch.sum(partial, dim=0, out=weight_grad)
    return residual


def qk_norm_rope(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, rotary: RotaryTable, length: int,
    head_dim: int, head_counts: tuple[int, int], eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Normed and rotated query [n, Q, head_dim] and key [n, K, head_dim].

    Args:
        qkv: Fused projection [n, (Q + 2 K) × head_dim]; n is batch × length.
        head_counts: Q and K.
    """
    q, k = head_counts
    if not uses_triton(qkv):
        split = qkv.view(len(qkv), -1, head_dim)
        query = rms_norm(split[:, :q].reshape(-1, head_dim), q_weight, eps).view(-1, length, q, head_dim)
        key = rms_norm(split[:, q : q + k].reshape(-1, head_dim), k_weight, eps).view(-1, length, k, head_dim)
        cos_sin = (rotary[0][:, None], rotary[1][:, None])
        return rotate(query, cos_sin).view(-1, q, head_dim), rotate(key, cos_sin).view(-1, k, head_dim)
    from stages.engine import layer_kernels

    query = qkv.new_empty(len(qkv), q, head_dim)
    key = qkv.new_empty(len(qkv), k, head_dim)
    layer_kernels.qk_norm_rope_forward[(len(qkv),)](
        qkv, q_weight, k_weight, *rotary, query, key, length,
        Q=q, K=k, QP=next_power_of_two(q), KP=next_power_of_two(k), HALF=head_dim // 2, eps=eps,
    )  # fmt: skip
    return query, key


def qk_norm_rope_backward(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, rotary: RotaryTable, length: int,
    head_dim: int, head_counts: tuple[int, int], eps: float,
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], weight_grads: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Gradient of `qkv`; see `qk_norm_rope`.

    Args:
        grads: Of query, key and value, each [n, heads, head_dim]. Those of key and value have K heads, or Q:
            then each group of Q / K neighbours is summed.
        weight_grads: float32 [2, head_dim], written: those of the query's and the key's norm.
    """
    q, k = head_counts
    group = grads[1].shape[1] // k
    if not uses_triton(qkv):
        with torch.enable_grad():
            leaves = [t.detach().float().requires_grad_() for t in (qkv, q_weight, k_weight)]
            tables = (rotary[0].float(), rotary[1].float())
            query, key = qk_norm_rope(
                leaves[0], leaves[1], leaves[2], tables, length, head_dim, head_counts, eps
            )
            g_key = grads[1].view(-1, k, group, head_dim).float().sum(dim=2)
            g_qkv, *norm_grads = torch.autograd.grad((query, key), leaves, (grads[0].float(), g_key))
        out = g_qkv.to(qkv.dtype)
        g_value = grads[2].view(-1, k, group, head_dim).float().sum(dim=2)
        out.view(len(qkv), -1, head_dim)[:, q + k :] = g_value
        torch.stack(norm_grads, out=weight_grads)
        return out
    from stages.engine import layer_kernels

    programs = min(len(qkv), MAX_PARTIAL_SUMS)
    partial = torch.empty(2, programs, head_dim, dtype=torch.float32, device=qkv.device)
    out = torch.empty_like(qkv)
    layer_kernels.qk_norm_rope_backward[(programs,)](
        qkv, q_weight, k_weight, *rotary, *(g.contiguous() for g in grads), out, *partial, len(qkv), length,
        Q=q, K=k, GROUP=group, QP=next_power_of_two(q), KP=next_power_of_two(k), HALF=head_dim // 2, eps=eps,
    )  # fmt: skip
    torch.sum(partial, dim=1, out=weight_grads)
    return out


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) × up of rows [gate, up]: [n, 2 width] to [n, width]."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    if not uses_triton(gate_up):
        return F.silu(gate_up[:, :width]) * gate_up[:, width:]
    from stages.engine import layer_kernels

    out = gate_up.new_empty(rows, width)
    layer_kernels.swiglu_forward[(rows, -(-width // 1024))](gate_up, out, width, BLOCK=1024)
    return out


def swiglu_backward(gate_up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(`swiglu` of `gate_up`, its gradient). `gate_up` may be overwritten."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    if not uses_triton(gate_up):
        with torch.enable_grad():
            leaf = gate_up.detach().float().requires_grad_()
            (out,) = torch.autograd.grad(F.silu(leaf[:, :width]) * leaf[:, width:], leaf, grad.float())
        return swiglu(gate_up), out.to(gate_up.dtype)
    from stages.engine import layer_kernels

    out = gate_up.new_empty(rows, width)
    layer_kernels.swiglu_backward[(rows, -(-width // 1024))](gate_up, grad, out, width, BLOCK=1024)
    return out, gate_up


def weight_grad(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, more: int = 0) -> torch.Tensor | None:
    """out [rows, columns] = grad^T x of grad [n, rows] and x [n, columns].

    Args:
        more: How many elements the returned sums have in addition, for the caller to write.

    Returns:
        float32 sums of squares of the result's parts, if the kernel computes it; else None.
    """
    rows, columns = out.shape
    whole_tiles = rows % _TILE[0] == 0 and columns % _TILE[1] == 0
    same_dtype = x.dtype == out.dtype and x.dtype != torch.float32
    if not (uses_triton(x) and len(x) <= _MAX_KERNEL_TOKENS and whole_tiles and same_dtype):
        torch.mm(grad.t(), x, out=out)
        return None
    from stages.engine import layer_kernels

    grid = (columns // _TILE[1], rows // _TILE[0])
    square_sums = torch.empty(grid[0] * grid[1] + more, device=x.device)
    layer_kernels.weight_grad[grid](
        grad, x, out, square_sums, len(x), grad.stride(0), columns, ROWS=_TILE[0], COLUMNS=_TILE[1], STEP=32,
        num_warps=4,
    )  # fmt: skip
    return square_sums
