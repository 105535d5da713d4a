"""Triton kernels for what a layer does between its matrix products: RMS norm, head norm with rotary
positions, SwiGLU.

Each is the reference's formula (`stages.engine.ops`) in one pass, with float32 inside and the compute dtype's
rounding where the model has it. Weight gradients of norms come as partial sums, one row a program, added up
in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_forward(x, weight, out, size, eps, BLOCK: tl.constexpr):
    """One row a program."""
    at = tl.arange(0, BLOCK)
    inside = at < size
    base = tl.program_id(0).to(tl.int64) * size
    value = tl.load(x + base + at, mask=inside, other=0.0).to(tl.float32)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    value = value.to(out.dtype.element_ty).to(tl.float32)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + base + at, (value * scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def rms_backward(x, weight, grad, residual, out, partial, rows, size, eps, BLOCK: tl.constexpr):
    """Rows of one program: every num_programs-th. `out` = residual + gradient of x, and may be `residual`."""
    at = tl.arange(0, BLOCK)
    inside = at < size
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        base = row.to(tl.int64) * size  # type: ignore[attr-defined]
        value = tl.load(x + base + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + base + at, mask=inside, other=0.0).to(tl.float32)
        root = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
        normed = value * root
        total += g * normed
        g = g * scale
        g = root * (g - normed * (tl.sum(g * normed, 0) / size))
        g += tl.load(residual + base + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + base + at, g.to(out.dtype.element_ty), mask=inside)
    tl.store(partial + tl.program_id(0).to(tl.int64) * size + at, total, mask=inside)


@triton.jit
def _rotate_heads(source, out, weight, cosine, sine, inside, heads, eps, HALF: tl.constexpr):
    """Heads [n, 2 * HALF] of one token from `source` to `out`, both pointers to the first."""
    half = tl.arange(0, HALF)
    at = heads[:, None] * (2 * HALF) + half[None, :]
    first = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + at + HALF, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    kind = out.dtype.element_ty
    first = (first * root).to(kind).to(tl.float32) * tl.load(weight + half).to(tl.float32)[None, :]
    second = (second * root).to(kind).to(tl.float32) * tl.load(weight + half + HALF).to(tl.float32)[None, :]
    tl.store(out + at, (first * cosine - second * sine).to(kind), mask=inside)
    tl.store(out + at + HALF, (second * cosine + first * sine).to(kind), mask=inside)


@triton.jit
def heads_forward(
    qkv, q_weight, k_weight, cosines, sines, query, key, length, Q: tl.constexpr, K: tl.constexpr, QP: tl.constexpr, KP: tl.constexpr,
    HALF: tl.constexpr, eps,
):  # fmt: skip
    """One token a program; QP and KP are the powers of two at or above the head counts Q and K."""
    token = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, HALF)
    place = (tl.program_id(0) % length) * (2 * HALF)
    cosine = tl.load(cosines + place + half).to(tl.float32)[None, :]
    sine = tl.load(sines + place + half).to(tl.float32)[None, :]
    source = qkv + token * ((Q + 2 * K) * 2 * HALF)
    heads = tl.arange(0, QP)
    _rotate_heads(
        source, query + token * (Q * 2 * HALF), q_weight, cosine, sine, (heads < Q)[:, None], heads, eps, HALF
    )
    heads = tl.arange(0, KP)
    source += Q * 2 * HALF
    _rotate_heads(
        source, key + token * (K * 2 * HALF), k_weight, cosine, sine, (heads < K)[:, None], heads, eps, HALF
    )


@triton.jit
def _sum_group(grad, inside, heads, GROUP: tl.constexpr, HALF: tl.constexpr):
    """Half heads [n, HALF] of one token, each the sum of GROUP neighbours."""
    at = heads[:, None] * (GROUP * 2 * HALF) + tl.arange(0, HALF)[None, :]
    total = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    for other in tl.static_range(1, GROUP):
        total += tl.load(grad + at + other * (2 * HALF), mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def _rotate_back(
    source, grad, out, weight, cosine, sine, inside, heads, eps, GROUP: tl.constexpr, HALF: tl.constexpr
):
    """Gradient of `_rotate_heads`; returns this token's sums for the two halves of the weight's gradient."""
    half = tl.arange(0, HALF)
    at = heads[:, None] * (2 * HALF) + half[None, :]
    first = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + at + HALF, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    first, second = first * root, second * root
    a, b = _sum_group(grad, inside, heads, GROUP, HALF), _sum_group(grad + HALF, inside, heads, GROUP, HALF)
    g1, g2 = a * cosine + b * sine, b * cosine - a * sine
    sum1, sum2 = tl.sum(g1 * first, 0), tl.sum(g2 * second, 0)
    g1 *= tl.load(weight + half).to(tl.float32)[None, :]
    g2 *= tl.load(weight + half + HALF).to(tl.float32)[None, :]
    mean = ((tl.sum(g1 * first, 1) + tl.sum(g2 * second, 1)) / (2 * HALF))[:, None]
    kind = out.dtype.element_ty
    tl.store(out + at, (root * (g1 - first * mean)).to(kind), mask=inside)
    tl.store(out + at + HALF, (root * (g2 - second * mean)).to(kind), mask=inside)
    return sum1, sum2


@triton.jit
def heads_backward(
    qkv, q_weight, k_weight, cosines, sines, g_query, g_key, g_value, out, q_partial, k_partial, tokens, length, Q: tl.constexpr,
    K: tl.constexpr, GROUP: tl.constexpr, QP: tl.constexpr, KP: tl.constexpr, HALF: tl.constexpr, eps,
):  # fmt: skip
    """Gradient of the merged projection; tokens of one program: every num_programs-th. Keys and values have
    GROUP gradients each.
    """
    half = tl.arange(0, HALF)
    q1 = tl.zeros([HALF], tl.float32)
    q2, k1, k2 = q1, q1, q1
    q_heads, k_heads = tl.arange(0, QP), tl.arange(0, KP)
    q_inside, k_inside = (q_heads < Q)[:, None], (k_heads < K)[:, None]
    for number in range(tl.program_id(0), tokens, tl.num_programs(0)):
        token = number.to(tl.int64)  # type: ignore[attr-defined]
        place = (number % length) * (2 * HALF)
        cosine = tl.load(cosines + place + half).to(tl.float32)[None, :]
        sine = tl.load(sines + place + half).to(tl.float32)[None, :]
        base = token * ((Q + 2 * K) * 2 * HALF)
        a, b = _rotate_back(
            qkv + base, g_query + token * (Q * 2 * HALF), out + base, q_weight, cosine, sine, q_inside, q_heads, eps, 1, HALF
        )  # fmt: skip
        q1, q2 = q1 + a, q2 + b
        base += Q * 2 * HALF
        a, b = _rotate_back(
            qkv + base, g_key + token * (K * GROUP * 2 * HALF), out + base, k_weight, cosine, sine, k_inside, k_heads, eps, GROUP, HALF
        )  # fmt: skip
        k1, k2 = k1 + a, k2 + b
        base += K * 2 * HALF
        at = k_heads[:, None] * (2 * HALF) + half[None, :]
        source = g_value + token * (K * GROUP * 2 * HALF)
        kind = out.dtype.element_ty
        tl.store(out + base + at, _sum_group(source, k_inside, k_heads, GROUP, HALF).to(kind), mask=k_inside)
        tl.store(
            out + base + at + HALF,
            _sum_group(source + HALF, k_inside, k_heads, GROUP, HALF).to(kind),
            mask=k_inside,
        )
    row = tl.program_id(0) * (2 * HALF) + half
    tl.store(q_partial + row, q1)
    tl.store(q_partial + row + HALF, q2)
    tl.store(k_partial + row, k1)
    tl.store(k_partial + row + HALF, k2)


@triton.jit
def attention_backward(
    query, key, value, grad, g_query, g_key, g_value, length, value_stride, heads, key_heads, scale, L: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """Gradients of causal attention of one head over a whole sequence, whose `length` is at most L.

    Args:
        query: [tokens, heads, DIM], as `grad`, `g_query`, and `g_key` and `g_value`, which are those of each
            query head.
        key: [tokens, key_heads, DIM], as `value`, whose tokens are `value_stride` apart.
    """
    head, at, dim = tl.program_id(0), tl.arange(0, L), tl.arange(0, DIM)[None, :]
    inside = (at < length)[:, None]
    token = tl.program_id(1) * length + at
    shared = head // (heads // key_heads)
    mine = (token * heads + head)[:, None] * DIM + dim
    q = tl.load(query + mine, mask=inside, other=0.0)
    g = tl.load(grad + mine, mask=inside, other=0.0)
    k = tl.load(key + (token * key_heads + shared)[:, None] * DIM + dim, mask=inside, other=0.0)
    v = tl.load(value + token[:, None] * value_stride + shared * DIM + dim, mask=inside, other=0.0)
    # No row attends to a padded key, and a padded row's gradient is 0.
    share = tl.where(at[:, None] >= at[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
    share = tl.exp(share - tl.max(share, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    tl.store(g_value + mine, tl.dot(tl.trans(share.to(g.dtype)), g).to(g.dtype), mask=inside)
    change = tl.dot(g, tl.trans(v))
    change = (share * (change - tl.sum(share * change, 1)[:, None]) * scale).to(g.dtype)
    tl.store(g_query + mine, tl.dot(change, k).to(g.dtype), mask=inside)
    tl.store(g_key + mine, tl.dot(tl.trans(change), q).to(g.dtype), mask=inside)


@triton.jit
def swiglu_forward(merged, out, width, BLOCK: tl.constexpr):
    """Rows [gate, up] of 2 * width to rows of width."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(merged + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(merged + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    tl.store(
        out + row * width + at, ((gate * tl.sigmoid(gate)).to(kind).to(tl.float32) * up).to(kind), mask=inside
    )


@triton.jit
def swiglu_backward(merged, grad, out, width, BLOCK: tl.constexpr):
    """Puts the gradient in the place of `merged`, and the forward's result in `out`."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(merged + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(merged + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + row * width + at, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    share = tl.sigmoid(gate)
    silu = (gate * share).to(kind).to(tl.float32)
    tl.store(out + row * width + at, (silu * up).to(kind), mask=inside)
    tl.store(
        merged + row * 2 * width + at, (g * up * share * (1.0 + gate * (1.0 - share))).to(kind), mask=inside
    )
    tl.store(merged + row * 2 * width + width + at, (g * silu).to(kind), mask=inside)
