"""What a layer does between its matrix products: Triton on CUDA, plain PyTorch elsewhere. Each function says
its formula.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stages.qwen3.model import rotate

Table = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, each [length, head_dim] in the compute dtype."""

_PROGRAMS = 512  # of a backward that sums over tokens: more make the partial sums larger than they save
# tokens: with more, the product that makes a weight's gradient waits for arithmetic, and cuBLAS is faster
_FEW = 256
_TILE = (64, 128)


def next_power(n: int) -> int:
    """The power of two at or above n."""
    return 1 << (n - 1).bit_length()


def fused(x: torch.Tensor) -> bool:
    """Whether the Triton kernels are used for this tensor."""
    return x.is_cuda


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) × weight for rows [n, size]; see `stages.qwen3.model.RMSNorm`."""
    if not fused(x):
        return F.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype) * weight.to(x.dtype)
    from stages.engine import kernels

    out = torch.empty_like(x)
    kernels.rms_forward[(len(x),)](x, weight, out, x.shape[1], eps, BLOCK=next_power(x.shape[1]), num_warps=8)
    return out


def rms_norm_backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    grad: torch.Tensor,
    residual: torch.Tensor,
    weight_grad: torch.Tensor,
) -> torch.Tensor:
    """residual + gradient of x [n, size]; `weight_grad` float32 [size] is filled in. `residual` may be
    overwritten.
    """
    rows, size = x.shape
    if not fused(x):
        value, g = x.float(), grad.float()
        root = torch.rsqrt(value.square().mean(dim=1, keepdim=True) + eps)
        normed = value * root
        scaled = g * weight.float()
        inner = root * (scaled - normed * (scaled * normed).mean(dim=1, keepdim=True))
        torch.sum(g * normed, dim=0, out=weight_grad)
        return (residual.float() + inner).to(x.dtype)
    from stages.engine import kernels

    programs = min(rows, _PROGRAMS)
    partial = torch.empty(programs, size, dtype=torch.float32, device=x.device)
    kernels.rms_backward[(programs,)](
        x, weight, grad, residual, residual, partial, rows, size, eps, BLOCK=next_power(size), num_warps=8
    )  # fmt: skip
    torch.sum(partial, dim=0, out=weight_grad)
    return residual


def heads(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, table: Table, length: int, head_dim: int,
    counts: tuple[int, int], eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Normed and rotated query [n, Q, head_dim] and key [n, K, head_dim] of merged projections [n, (Q + 2 K)
    × head_dim].
    """
    q, k = counts
    if not fused(qkv):
        split = qkv.view(len(qkv), -1, head_dim)
        query = rms_norm(split[:, :q].reshape(-1, head_dim), q_weight, eps).view(-1, length, q, head_dim)
        key = rms_norm(split[:, q : q + k].reshape(-1, head_dim), k_weight, eps).view(-1, length, k, head_dim)
        spread = (table[0][:, None], table[1][:, None])
        return rotate(query, spread).view(-1, q, head_dim), rotate(key, spread).view(-1, k, head_dim)
    from stages.engine import kernels

    query = qkv.new_empty(len(qkv), q, head_dim)
    key = qkv.new_empty(len(qkv), k, head_dim)
    kernels.heads_forward[(len(qkv),)](
        qkv, q_weight, k_weight, *table, query, key, length,
        Q=q, K=k, QP=next_power(q), KP=next_power(k), HALF=head_dim // 2, eps=eps,
    )  # fmt: skip
    return query, key


def heads_backward(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, table: Table, length: int, head_dim: int, counts: tuple[int, int],
    eps: float, grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], weight_grads: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Gradient of `qkv`; `weight_grads` float32 [2, head_dim], of the query's and the key's norm, is filled
    in.

    Args:
        grads: Of query, key and value, each [n, heads, head_dim]; the latter two with k heads, or with q, of
            which neighbours are summed.
    """
    q, k = counts
    group = grads[1].shape[1] // k
    if not fused(qkv):
        with torch.enable_grad():
            leaves = [t.detach().float().requires_grad_() for t in (qkv, q_weight, k_weight)]
            tables = (table[0].float(), table[1].float())
            query, key = heads(leaves[0], leaves[1], leaves[2], tables, length, head_dim, counts, eps)
            g_key = grads[1].view(-1, k, group, head_dim).float().sum(dim=2)
            found = torch.autograd.grad((query, key), leaves, (grads[0].float(), g_key))
        out = found[0].to(qkv.dtype)
        out.view(len(qkv), -1, head_dim)[:, q + k :] = (
            grads[2].view(-1, k, group, head_dim).float().sum(dim=2)
        )
        torch.stack((found[1], found[2]), out=weight_grads)
        return out
    from stages.engine import kernels

    programs = min(len(qkv), _PROGRAMS)
    partial = torch.empty(2, programs, head_dim, dtype=torch.float32, device=qkv.device)
    out = torch.empty_like(qkv)
    kernels.heads_backward[(programs,)](
        qkv, q_weight, k_weight, *table, *(g.contiguous() for g in grads), out, partial[0], partial[1], len(qkv), length,
        Q=q, K=k, GROUP=group, QP=next_power(q), KP=next_power(k), HALF=head_dim // 2, eps=eps,
    )  # fmt: skip
    torch.sum(partial, dim=1, out=weight_grads)
    return out


def swiglu(merged: torch.Tensor) -> torch.Tensor:
    """silu(gate) × up of rows [gate, up]: [n, 2 width] to [n, width]."""
    rows, width = len(merged), merged.shape[1] // 2
    if not fused(merged):
        return F.silu(merged[:, :width]) * merged[:, width:]
    from stages.engine import kernels

    out = merged.new_empty(rows, width)
    kernels.swiglu_forward[(rows, -(-width // 1024))](merged, out, width, BLOCK=1024)
    return out


def swiglu_backward(merged: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(`swiglu` of `merged`, its gradient). `merged` may be overwritten."""
    rows, width = len(merged), merged.shape[1] // 2
    if not fused(merged):
        with torch.enable_grad():
            leaf = merged.detach().float().requires_grad_()
            (found,) = torch.autograd.grad(F.silu(leaf[:, :width]) * leaf[:, width:], leaf, grad.float())
        return swiglu(merged), found.to(merged.dtype)
    from stages.engine import kernels

    out = merged.new_empty(rows, width)
    kernels.swiglu_backward[(rows, -(-width // 1024))](merged, grad, out, width, BLOCK=1024)
    return out, merged


def weight_grad(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, more: int = 0) -> torch.Tensor | None:
    """out [rows, columns] = grad^T x of grad [n, rows] and x [n, columns].

    Args:
        more: Room for so many sums after those that are returned.

    Returns:
        float32 sums of squares of the result's parts, where they come without another pass over it.
    """
    rows, columns = out.shape
    if (
        not fused(x)
        or len(x) > _FEW
        or rows % _TILE[0]
        or columns % _TILE[1]
        or x.dtype != out.dtype
        or x.dtype == torch.float32
    ):
        torch.mm(grad.t(), x, out=out)
        return None
    from stages.engine import kernels_product

    grid = (columns // _TILE[1], rows // _TILE[0])
    sums = torch.empty(grid[0] * grid[1] + more, device=x.device)
    kernels_product.weight_grad[grid](
        grad, x, out, sums, len(x), grad.stride(0), columns, ROWS=_TILE[0], COLUMNS=_TILE[1], STEP=32, num_warps=4
    )  # fmt: skip
    return sums
