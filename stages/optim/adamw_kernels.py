"""The AdamW update as Triton kernels: decode the 8-bit states, update, round stochastically, encode, in one
pass over memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A constant below float32's smallest normal number would turn everything that it touches into float64.
_SMALLEST = tl.constexpr(1.2e-38)

# Four bytes at a time become float32 and back through 2^23 + byte, whose low bits are the byte: conversion
# instructions have the lowest throughput of all.
_UINT8_TO_FLOAT = tl.constexpr("""
prmt.b32 $0, $4, 0x4B000000, 0x7650; prmt.b32 $1, $4, 0x4B000000, 0x7651;
prmt.b32 $2, $4, 0x4B000000, 0x7652; prmt.b32 $3, $4, 0x4B000000, 0x7653;
""")
_INT8_TO_FLOAT = tl.constexpr("""{ .reg .b32 t; xor.b32 t, $4, 0x80808080;
prmt.b32 $0, t, 0x4B000000, 0x7650; prmt.b32 $1, t, 0x4B000000, 0x7651;
prmt.b32 $2, t, 0x4B000000, 0x7652; prmt.b32 $3, t, 0x4B000000, 0x7653; }
""")
_BF16_TO_FLOAT = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;")
_FLOAT_TO_UINT8 = tl.constexpr(
    "{ .reg .b32 s, t; prmt.b32 s, $1, $2, 0x0040; prmt.b32 t, $3, $4, 0x0040; prmt.b32 $0, s, t, 0x5410; }"
)


@triton.jit
def _hash(x):
    """`stages.optim.noise.hash32` on uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _reciprocal(x):
    """1 / x within a unit in the last place, for x that is neither tiny nor huge."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _to_float32(x):
    """float32 of any floating dtype."""
    if x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            _BF16_TO_FLOAT, "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2
        )
    else:
        return x.to(tl.float32)


@triton.jit
def _to_byte(x):
    """The low byte of float32 values as uint8."""
    return tl.inline_asm_elementwise(_FLOAT_TO_UINT8, "=r,f,f,f,f", [x], dtype=tl.uint8, is_pure=True, pack=4)


@triton.jit
def _load(tensors, at, blocks, mask, block_mask):
    """Master, then codes and scales of exp_avg and of exp_avg_sq: elements [ROWS, 256], scales [ROWS]."""
    return (
        tl.load(tensors[0] + at, mask=mask),
        tl.load(tensors[1] + at, mask=mask),
        tl.load(tensors[2] + blocks, mask=block_mask),
        tl.load(tensors[3] + at, mask=mask),
        tl.load(tensors[4] + blocks, mask=block_mask),
    )


@triton.jit
def _int8_to_float32(code):
    return tl.inline_asm_elementwise(
        _INT8_TO_FLOAT, "=f,=f,=f,=f,r", [code], dtype=tl.float32, is_pure=True, pack=4
    ) - 8388736.0  # fmt: skip


@triton.jit
def _uint8_to_float32(code):
    return tl.inline_asm_elementwise(
        _UINT8_TO_FLOAT, "=f,=f,=f,=f,r", [code], dtype=tl.float32, is_pure=True, pack=4
    ) - 8388608.0  # fmt: skip


@triton.jit
def _random_bits(seed, step, tensor_index, start):
    """uint32 [ROWS, 256]: `stages.optim.noise.random_bits` without the hash's last step, which changes only
    the lower 16 bits.

    Args:
        start: uint32 [ROWS], index of each block's first element in its parameter.
    """
    # `_hash` of (element ^ key), whose first shift drops the low 8 bits: it is computed once a block.
    key = _hash(_hash(seed.to(tl.uint32) ^ tl.load(step).to(tl.uint32)) ^ tensor_index.to(tl.uint32))
    start = start ^ key
    bits = ((start ^ (start >> 16))[:, None] ^ tl.arange(0, 256)[None, :].to(tl.uint32)) * 0x7FEB352D
    return (bits ^ (bits >> 15)) * 0x846CA68B


@triton.jit
def _store_states(
    tensors, at, blocks, mask, block_mask, m, root, bits, one_minus_beta1, sqrt_one_minus_beta2
):
    """Encodes exp_avg / (1 - beta1) and sqrt(exp_avg_sq / (1 - beta2)), float32 [ROWS, 256]."""
    # sqrt(|m| / M) * 127 with one division a block; 1.5 * 2^23 makes two's complement of negative codes.
    magnitude = tl.abs(m)
    largest = tl.max(magnitude, 1)
    shrink = _reciprocal(tl.maximum(largest, _SMALLEST))
    code = tl.sqrt(magnitude * shrink[:, None]).to(tl.int32, bitcast=True)
    code |= m.to(tl.int32, bitcast=True) & -2147483648  # the sign
    tl.store(tensors[1] + at, _to_byte(code.to(tl.float32, bitcast=True) * 127.0 + 12582912.0), mask=mask)
    tl.store(tensors[2] + blocks, largest * one_minus_beta1, mask=block_mask)
    largest = tl.max(root, 1)
    # Slightly less than 1 / largest, so that no code exceeds 255.
    shrink = _reciprocal(tl.maximum(largest, _SMALLEST)) * 0.9999997
    # 1 + the upper 16 bits / 2^16; minus 1.5, because adding 2^23 rounds to nearest and floor is wanted.
    uniform = (((bits >> 9) & 0x7FFF80) | 0x3F800000).to(tl.float32, bitcast=True)
    value = tl.sqrt(root * shrink[:, None]) * 255.0 + uniform
    value = tl.maximum(value, tl.where(root > 0, 2.5, 1.5))
    tl.store(tensors[3] + at, _to_byte(value + 8388606.5), mask=mask)
    tl.store(tensors[4] + blocks, largest * sqrt_one_minus_beta2, mask=block_mask)


@triton.jit
def _apply(
    g, loaded, tensors, at, blocks, mask, block_mask, step_scalars, step, clip, ratio_sums, start, seed,
    tensor_index, group_lr_factor, decay, beta1, one_minus_beta1, sqrt_beta2, sqrt_one_minus_beta2, eps,
    CLIP: tl.constexpr, STOCHASTIC: tl.constexpr, DECAY: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Updates ROWS state blocks of 256 elements.

    Args:
        g: Gradient [ROWS, 256] float32.
        loaded: What `_load` returned for these elements.
        step_scalars: float32 [3]: learning rate, 1 - beta1^step, sqrt(1 - beta2^step).
        ratio_sums: Receives <applied, intended> and <intended, intended>.
        start: See `_random_bits`.
    """
    lr = tl.load(step_scalars) * group_lr_factor
    if CLIP:
        factor = tl.load(clip)
        one_minus_beta1 *= factor
        sqrt_one_minus_beta2 *= factor
    # Both averages are in units of what a gradient of 1 adds to them: only a block's scale has to change. The
    # rate goes into the denominator, so that `change` is one product. A rate of 0 becomes one that changes no
    # float32.
    rate = tl.maximum(one_minus_beta1 * lr / tl.load(step_scalars + 1), 1e-30)
    slope = sqrt_one_minus_beta2 / tl.load(step_scalars + 2) / rate
    # The averages' decay goes into the scale of a block too.
    code = _int8_to_float32(loaded[1])
    scale = loaded[2] * (beta1 / 16129.0 / one_minus_beta1)
    m = code * tl.abs(code) * scale[:, None] + g
    code = _uint8_to_float32(loaded[3])
    scale = loaded[4] * (sqrt_beta2 / 65025.0 / sqrt_one_minus_beta2)
    root = code * code * scale[:, None]
    root = tl.sqrt(root * root + g * g)
    old = _to_float32(loaded[0])
    change = m * _reciprocal(root * slope + eps / rate)
    if DECAY:
        change += old * (lr * decay)
    bits = _random_bits(seed, step, tensor_index, start)
    new = old - change
    if STOCHASTIC:
        moved = new.to(tl.int32, bitcast=True) + ((bits ^ (bits >> 16)) & 0xFFFF).to(tl.int32)
        new = (moved & -65536).to(tl.float32, bitcast=True)
    stored = new.to(loaded[0].dtype)
    tl.store(tensors[0] + at, stored, mask=mask)
    if not WHOLE:
        change = tl.where(mask, change, 0.0)
    applied = old - (new if STOCHASTIC else stored.to(tl.float32))
    tl.store(ratio_sums, tl.sum(tl.sum(applied * change, 1), 0))
    tl.store(ratio_sums + 1, tl.sum(tl.sum(change * change, 1), 0))
    _store_states(tensors, at, blocks, mask, block_mask, m, root, bits, one_minus_beta1, sqrt_one_minus_beta2)


# Specialization would compile another kernel wherever one of these happens to be 1 or a multiple of 16.
@triton.jit(do_not_specialize=["seed", "tensor_index", "n", "first"])
def update_chunk(
    grad, master, exp_avg_codes, exp_avg_scales, exp_avg_sq_codes, exp_avg_sq_scales, step_scalars, step,
    clip, ratio_sums, seed, tensor_index, group_lr_factor, decay, beta1, one_minus_beta1, sqrt_beta2,
    sqrt_one_minus_beta2, eps, first, n, CLIP: tl.constexpr, STOCHASTIC: tl.constexpr, DECAY: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Updates n elements of a parameter from `first` on, which is what the pointers point to.

    Args:
        clip: float32 0-dim, factor on the gradient; read with CLIP.
        ratio_sums: float32 [programs, 2]; see `_apply`.
        WHOLE: Whether n is a multiple of ROWS state blocks.
    """
    # One 64-bit base for the program, 32-bit offsets inside it.
    row = tl.program_id(0) * ROWS
    base = row.to(tl.int64) * 256
    rows = tl.arange(0, ROWS)
    at = rows[:, None] * 256 + tl.arange(0, 256)[None, :]
    mask = (at < n - base) | WHOLE
    block_mask = (rows * 256 < n - base) | WHOLE
    tensors = (
        master + base, exp_avg_codes + base, exp_avg_scales + row, exp_avg_sq_codes + base,
        exp_avg_sq_scales + row,
    )  # fmt: skip
    g = _to_float32(tl.load(grad + base + at, mask=mask, other=0.0))
    start = first.to(tl.uint32) + (row + rows).to(tl.uint32) * 256
    loaded = _load(tensors, at, rows, mask, block_mask)
    _apply(
        g, loaded, tensors, at, rows, mask, block_mask, step_scalars, step, clip,
        ratio_sums + tl.program_id(0) * 2, start, seed, tensor_index, group_lr_factor, decay, beta1,
        one_minus_beta1, sqrt_beta2, sqrt_one_minus_beta2, eps, CLIP, STOCHASTIC, DECAY, WHOLE,
    )  # fmt: skip


@triton.jit
def _pointer(table, column, DTYPE: tl.constexpr):
    # torch aligns what it allocates
    return tl.multiple_of(tl.load(table + column).to(tl.pointer_type(DTYPE)), 16)


@triton.jit(do_not_specialize=["seed"])
def update_many(
    table, group_lr_factors, grads, step_scalars, step, clip, ratio_sums, seed, beta1, one_minus_beta1,
    sqrt_beta2, sqrt_one_minus_beta2, eps, CLIP: tl.constexpr, STOCHASTIC: tl.constexpr, DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Updates many small parameters in one launch, without decay: one a program of the first axis.

    Args:
        table: int64 [count, 9]: addresses of the master, of codes and scales of exp_avg, of codes and scales
            of exp_avg_sq; number of elements; index of its first element in `grads` and of its first pair in
            `ratio_sums`; its tensor index for the random bits.
        group_lr_factors: float32 [count].
        grads: float32.
        DTYPE: Element type of the masters.
    """
    row = tl.program_id(1) * ROWS
    rows = tl.arange(0, ROWS)
    entry = table + tl.program_id(0) * 9
    n = tl.load(entry + 5)
    if row * 256 < n:
        at = (row + rows)[:, None] * 256 + tl.arange(0, 256)[None, :]
        mask, block_mask = at < n, (row + rows) * 256 < n
        tensors = (
            _pointer(entry, 0, DTYPE), _pointer(entry, 1, tl.uint8), _pointer(entry, 2, tl.float32),
            _pointer(entry, 3, tl.uint8), _pointer(entry, 4, tl.float32),
        )  # fmt: skip
        g = tl.load(grads + tl.load(entry + 6) + at, mask=mask, other=0.0)
        pair = ratio_sums + (tl.load(entry + 7) + tl.program_id(1)) * 2
        loaded = _load(tensors, at, row + rows, mask, block_mask)
        _apply(
            g, loaded, tensors, at, row + rows, mask, block_mask, step_scalars, step, clip, pair,
            (row + rows).to(tl.uint32) * 256, seed, tl.load(entry + 8),
            tl.load(group_lr_factors + tl.program_id(0)), 0.0, beta1, one_minus_beta1, sqrt_beta2,
            sqrt_one_minus_beta2, eps, CLIP, STOCHASTIC, False, False,
        )  # fmt: skip
