"""Triton kernels of one layer: RMS norm, head norms with rotary positions, attention's gradient, SwiGLU, and
the gradient of a weight.

Each computes its formula in `stages.engine.ops` or `stages.engine.attention` in one pass: float32 inside,
rounded to the compute dtype where the model rounds. The weight gradients of norms are partial sums, one row a
program, that the caller adds up in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_forward(x, weight, out, size, eps, BLOCK: tl.constexpr):
    """out = x / rms(x) * weight, one row a program."""
    at = tl.arange(0, BLOCK)
    mask = at < size
    base = tl.program_id(0).to(tl.int64) * size
    value = tl.load(x + base + at, mask=mask, other=0.0).to(tl.float32)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    value = value.to(out.dtype.element_ty).to(tl.float32)
    scale = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + base + at, (value * scale).to(out.dtype.element_ty), mask=mask)


@triton.jit
def rms_backward(x, weight, grad, residual, out, partial, rows, size, eps, BLOCK: tl.constexpr):
    """out = residual + gradient of x; `out` may be `residual`. A program takes every num_programs-th row."""
    at = tl.arange(0, BLOCK)
    mask = at < size
    scale = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        base = row.to(tl.int64) * size  # type: ignore[attr-defined]
        value = tl.load(x + base + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + base + at, mask=mask, other=0.0).to(tl.float32)
        root = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
        normed = value * root
        total += g * normed
        g = g * scale
        g = root * (g - normed * (tl.sum(g * normed, 0) / size))
        g += tl.load(residual + base + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + base + at, g.to(out.dtype.element_ty), mask=mask)
    tl.store(partial + tl.program_id(0).to(tl.int64) * size + at, total, mask=mask)


@triton.jit
def _norm_rope(source, out, weight, cos, sin, mask, heads, eps, HALF: tl.constexpr):
    """Norms and rotates the heads [n, 2 * HALF] of one token; `source` and `out` point to the first."""
    half = tl.arange(0, HALF)
    at = heads[:, None] * (2 * HALF) + half[None, :]
    first = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + at + HALF, mask=mask, other=0.0).to(tl.float32)
    root = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    dtype = out.dtype.element_ty
    first = (first * root).to(dtype).to(tl.float32) * tl.load(weight + half).to(tl.float32)[None, :]
    second = (second * root).to(dtype).to(tl.float32) * tl.load(weight + half + HALF).to(tl.float32)[None, :]
    tl.store(out + at, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(out + at + HALF, (second * cos + first * sin).to(dtype), mask=mask)


@triton.jit
def qk_norm_rope_forward(
    qkv, q_weight, k_weight, cos_table, sin_table, query, key, length, Q: tl.constexpr, K: tl.constexpr,
    QP: tl.constexpr, KP: tl.constexpr, HALF: tl.constexpr, eps,
):  # fmt: skip
    """Normed and rotated query and key of the fused projection, one token a program.

    Args:
        Q: Number of query heads; K that of key heads. QP and KP are the powers of two at or above them.
        HALF: Half of head_dim.
    """
    token = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, HALF)
    table_at = (tl.program_id(0) % length) * (2 * HALF)
    cos = tl.load(cos_table + table_at + half).to(tl.float32)[None, :]
    sin = tl.load(sin_table + table_at + half).to(tl.float32)[None, :]
    source = qkv + token * ((Q + 2 * K) * 2 * HALF)
    heads = tl.arange(0, QP)
    query += token * (Q * 2 * HALF)
    _norm_rope(source, query, q_weight, cos, sin, (heads < Q)[:, None], heads, eps, HALF)
    heads = tl.arange(0, KP)
    source += Q * 2 * HALF
    key += token * (K * 2 * HALF)
    _norm_rope(source, key, k_weight, cos, sin, (heads < K)[:, None], heads, eps, HALF)


@triton.jit
def _sum_group(grad, mask, heads, GROUP: tl.constexpr, HALF: tl.constexpr):
    """Half heads [n, HALF] of one token: each the sum over the GROUP query heads of a key head."""
    at = heads[:, None] * (GROUP * 2 * HALF) + tl.arange(0, HALF)[None, :]
    total = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    for other in tl.static_range(1, GROUP):
        total += tl.load(grad + at + other * (2 * HALF), mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _norm_rope_backward(
    source, grad, out, weight, cos, sin, mask, heads, eps, GROUP: tl.constexpr, HALF: tl.constexpr
):
    """Gradient of `_norm_rope`; returns this token's sums for the two halves of the weight's gradient."""
    half = tl.arange(0, HALF)
    at = heads[:, None] * (2 * HALF) + half[None, :]
    first = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + at + HALF, mask=mask, other=0.0).to(tl.float32)
    root = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    first, second = first * root, second * root
    a = _sum_group(grad, mask, heads, GROUP, HALF)
    b = _sum_group(grad + HALF, mask, heads, GROUP, HALF)
    g1, g2 = a * cos + b * sin, b * cos - a * sin
    sum1, sum2 = tl.sum(g1 * first, 0), tl.sum(g2 * second, 0)
    g1 *= tl.load(weight + half).to(tl.float32)[None, :]
    g2 *= tl.load(weight + half + HALF).to(tl.float32)[None, :]
    mean = ((tl.sum(g1 * first, 1) + tl.sum(g2 * second, 1)) / (2 * HALF))[:, None]
    dtype = out.dtype.element_ty
    tl.store(out + at, (root * (g1 - first * mean)).to(dtype), mask=mask)
    tl.store(out + at + HALF, (root * (g2 - second * mean)).to(dtype), mask=mask)
    return sum1, sum2


@triton.jit
def qk_norm_rope_backward(
    qkv, q_weight, k_weight, cos_table, sin_table, g_query, g_key, g_value, out, q_partial, k_partial, tokens,
    length, Q: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, QP: tl.constexpr, KP: tl.constexpr,
    HALF: tl.constexpr, eps,
):  # fmt: skip
    """Gradient `out` of the fused projection. A program takes every num_programs-th token.

    Args:
        g_query: [tokens, Q, 2 * HALF].
        g_key: [tokens, K * GROUP, 2 * HALF], as `g_value`: GROUP neighbours belong to one head.
        q_partial: float32 [programs, 2 * HALF], as `k_partial`: sums for the gradients of the norms' weights.
    """
    half = tl.arange(0, HALF)
    q1 = tl.zeros([HALF], tl.float32)
    q2, k1, k2 = q1, q1, q1
    q_heads, k_heads = tl.arange(0, QP), tl.arange(0, KP)
    q_mask, k_mask = (q_heads < Q)[:, None], (k_heads < K)[:, None]
    for number in range(tl.program_id(0), tokens, tl.num_programs(0)):
        token = number.to(tl.int64)  # type: ignore[attr-defined]
        table_at = (number % length) * (2 * HALF)
        cos = tl.load(cos_table + table_at + half).to(tl.float32)[None, :]
        sin = tl.load(sin_table + table_at + half).to(tl.float32)[None, :]
        base = token * ((Q + 2 * K) * 2 * HALF)
        a, b = _norm_rope_backward(
            qkv + base, g_query + token * (Q * 2 * HALF), out + base, q_weight, cos, sin, q_mask, q_heads,
            eps, 1, HALF,
        )  # fmt: skip
        q1, q2 = q1 + a, q2 + b
        base += Q * 2 * HALF
        a, b = _norm_rope_backward(
            qkv + base, g_key + token * (K * GROUP * 2 * HALF), out + base, k_weight, cos, sin, k_mask,
            k_heads, eps, GROUP, HALF,
        )  # fmt: skip
        k1, k2 = k1 + a, k2 + b
        base += K * 2 * HALF
        at = k_heads[:, None] * (2 * HALF) + half[None, :]
        source = g_value + token * (K * GROUP * 2 * HALF)
        dtype = out.dtype.element_ty
        tl.store(out + base + at, _sum_group(source, k_mask, k_heads, GROUP, HALF).to(dtype), mask=k_mask)
        target = out + base + at + HALF
        tl.store(target, _sum_group(source + HALF, k_mask, k_heads, GROUP, HALF).to(dtype), mask=k_mask)
    row = tl.program_id(0) * (2 * HALF) + half
    tl.store(q_partial + row, q1)
    tl.store(q_partial + row + HALF, q2)
    tl.store(k_partial + row, k1)
    tl.store(k_partial + row + HALF, k2)


@triton.jit
def attention_backward(
    query, key, value, grad, g_query, g_key, g_value, length, value_stride, heads, key_heads, scale,
    L: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Gradients of causal attention of one head over a whole sequence, whose `length` is at most L.

    Args:
        query: [tokens, heads, DIM], as `grad` and `g_query`; as `g_key` and `g_value` too, one a query head.
        key: [tokens, key_heads, DIM], as `value`, whose tokens are `value_stride` elements apart.
    """
    head, at, dim = tl.program_id(0), tl.arange(0, L), tl.arange(0, DIM)[None, :]
    mask = (at < length)[:, None]
    token = tl.program_id(1) * length + at
    key_head = head // (heads // key_heads)
    query_at = (token * heads + head)[:, None] * DIM + dim
    q = tl.load(query + query_at, mask=mask, other=0.0)
    g = tl.load(grad + query_at, mask=mask, other=0.0)
    k = tl.load(key + (token * key_heads + key_head)[:, None] * DIM + dim, mask=mask, other=0.0)
    v = tl.load(value + token[:, None] * value_stride + key_head * DIM + dim, mask=mask, other=0.0)
    # No row attends to a padded key, and a padded row's gradient is 0.
    prob = tl.where(at[:, None] >= at[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
    prob = tl.exp(prob - tl.max(prob, 1)[:, None])
    prob = prob / tl.sum(prob, 1)[:, None]
    tl.store(g_value + query_at, tl.dot(tl.trans(prob.to(g.dtype)), g).to(g.dtype), mask=mask)
    grad_scores = tl.dot(g, tl.trans(v))
    grad_scores = (prob * (grad_scores - tl.sum(prob * grad_scores, 1)[:, None]) * scale).to(g.dtype)
    tl.store(g_query + query_at, tl.dot(grad_scores, k).to(g.dtype), mask=mask)
    tl.store(g_key + query_at, tl.dot(tl.trans(grad_scores), q).to(g.dtype), mask=mask)


@triton.jit
def swiglu_forward(gate_up, out, width, BLOCK: tl.constexpr):
    """silu(gate) * up: rows [gate, up] of 2 * width to rows of width."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up + row * 2 * width + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=mask, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    out += row * width + at
    silu = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    tl.store(out, (silu * up).to(dtype), mask=mask)


@triton.jit
def swiglu_backward(gate_up, grad, out, width, BLOCK: tl.constexpr):
    """Writes the gradient over `gate_up`, and the forward's result to `out`."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up + row * 2 * width + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(grad + row * width + at, mask=mask, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    gate_sigmoid = tl.sigmoid(gate)
    silu = (gate * gate_sigmoid).to(dtype).to(tl.float32)
    tl.store(out + row * width + at, (silu * up).to(dtype), mask=mask)
    g_gate = g * up * gate_sigmoid * (1.0 + gate * (1.0 - gate_sigmoid))
    tl.store(gate_up + row * 2 * width + at, g_gate.to(dtype), mask=mask)
    tl.store(gate_up + row * 2 * width + width + at, (g * silu).to(dtype), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def weight_grad(
    grad, x, out, square_sums, tokens, stride, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """out [rows, columns] = grad^T x in tiles that divide it, and each tile's sum of squares before rounding.

    Args:
        grad: [tokens, rows], whose tokens are `stride` elements apart.
        x: [tokens, columns].
        square_sums: float32, one a program.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for token in range(0, tokens, STEP):
        at = token + tl.arange(0, STEP)
        mask = at < tokens
        left = tl.load(grad + at[None, :] * stride + row[:, None], mask=mask[None, :], other=0.0)
        right = tl.load(x + at[:, None] * columns + column[None, :], mask=mask[:, None], other=0.0)
        total = tl.dot(left, right, total)
    tile = square_sums + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(tile, tl.sum(tl.sum(total * total, 1), 0))
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], total.to(out.dtype.element_ty))
