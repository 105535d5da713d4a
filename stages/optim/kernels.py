"""The AdamW update as Triton kernels: decode the 8-bit states, update, round stochastically, encode, in one
pass over memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

SMALLEST = tl.constexpr(
    1.2e-38
)  # a constant below float32's smallest normal number would make float64 of all that it touches

# Four bytes become float32 and back by way of 2^23 + byte, whose low bits are the byte: the conversion unit
# is the narrowest there is.
_UNSIGNED = tl.constexpr("""
prmt.b32 $0, $4, 0x4B000000, 0x7650; prmt.b32 $1, $4, 0x4B000000, 0x7651;
prmt.b32 $2, $4, 0x4B000000, 0x7652; prmt.b32 $3, $4, 0x4B000000, 0x7653;
""")
_SIGNED = tl.constexpr("""{ .reg .b32 t; xor.b32 t, $4, 0x80808080;
prmt.b32 $0, t, 0x4B000000, 0x7650; prmt.b32 $1, t, 0x4B000000, 0x7651;
prmt.b32 $2, t, 0x4B000000, 0x7652; prmt.b32 $3, t, 0x4B000000, 0x7653; }
""")
_BF16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;")
_PACK = tl.constexpr(
    """{ .reg .b32 s, t; prmt.b32 s, $1, $2, 0x0040; prmt.b32 t, $3, $4, 0x0040; prmt.b32 $0, s, t, 0x5410; }"""
)


@triton.jit
def _mix(x):
    """`stages.optim.noise.mix` on uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _reciprocal(x):
    """1 / x to an ulp, for x that is neither tiny nor huge."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _wide(x):
    """float32 of any floating dtype."""
    if x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(_BF16, "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2)
    else:
        return x.to(tl.float32)


@triton.jit
def _low_byte(x):
    """The low byte of float32 values as uint8."""
    return tl.inline_asm_elementwise(_PACK, "=r,f,f,f,f", [x], dtype=tl.uint8, is_pure=True, pack=4)


@triton.jit
def _read(tensors, at, blocks, inside, block_inside):
    """Master, average codes and scales, root codes and scales: elements [ROWS, 256] from memory, scales
    [ROWS].
    """
    return (
        tl.load(tensors[0] + at, mask=inside),
        tl.load(tensors[1] + at, mask=inside),
        tl.load(tensors[2] + blocks, mask=block_inside),
        tl.load(tensors[3] + at, mask=inside),
        tl.load(tensors[4] + blocks, mask=block_inside),
    )


@triton.jit
def _apply(
    g, found, tensors, at, blocks, inside, block_inside, numbers, step, clip, survived, start, seed, index, group_lr_factor, decay, beta1, new1,
    beta2_root, new2_root, eps, CLIP: tl.constexpr, STOCHASTIC: tl.constexpr, DECAY: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Updates ROWS state blocks of 256 elements.

    Args:
        g: Gradient [ROWS, 256] float32.
        found: What `_read` returned for these elements.
        survived: Receives <applied, intended> and <intended, intended>.
        start: uint32 [ROWS], number of each block's first element in its parameter.
        new1: 1 - beta1.
        beta2_root: Square root of beta2; `new2_root` that of 1 - beta2.
    """
    lr = tl.load(numbers) * group_lr_factor
    if CLIP:
        factor = tl.load(clip)
        new1 *= factor
        new2_root *= factor
    # Both averages are kept in units of what a gradient of 1 adds to them, which is a matter of a block's
    # scale. The rate goes into the denominator: `change` is one product. A rate of 0 becomes one that changes
    # no float32.
    rate = tl.maximum(new1 * lr / tl.load(numbers + 1), 1e-30)
    slope = new2_root / tl.load(numbers + 2) / rate
    # Decay of the averages goes into the scale of a block too.
    code = (
        tl.inline_asm_elementwise(
            _SIGNED, "=f,=f,=f,=f,r", [found[1]], dtype=tl.float32, is_pure=True, pack=4
        )
        - 8388736.0
    )
    scale = found[2] * (beta1 / 16129.0 / new1)
    m = code * tl.abs(code) * scale[:, None] + g
    code = (
        tl.inline_asm_elementwise(
            _UNSIGNED, "=f,=f,=f,=f,r", [found[3]], dtype=tl.float32, is_pure=True, pack=4
        )
        - 8388608.0
    )
    scale = found[4] * (beta2_root / 65025.0 / new2_root)
    root = code * code * scale[:, None]
    root = tl.sqrt(root * root + g * g)
    old = _wide(found[0])
    change = m * _reciprocal(root * slope + eps / rate)
    if DECAY:
        change += old * (lr * decay)
    # `_mix` of (element ^ key), whose first shift sees nothing of the low 8 bits: it is made once a block.
    key = _mix(_mix(seed.to(tl.uint32) ^ tl.load(step).to(tl.uint32)) ^ index.to(tl.uint32))
    start = start ^ key
    bits = ((start ^ (start >> 16))[:, None] ^ tl.arange(0, 256)[None, :].to(tl.uint32)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    new = old - change
    if STOCHASTIC:
        moved = new.to(tl.int32, bitcast=True) + ((bits ^ (bits >> 16)) & 0xFFFF).to(tl.int32)
        new = (moved & -65536).to(tl.float32, bitcast=True)
    stored = new.to(found[0].dtype)
    tl.store(tensors[0] + at, stored, mask=inside)
    if not WHOLE:
        change = tl.where(inside, change, 0.0)
    applied = old - (new if STOCHASTIC else stored.to(tl.float32))
    tl.store(survived, tl.sum(tl.sum(applied * change, 1), 0))
    tl.store(survived + 1, tl.sum(tl.sum(change * change, 1), 0))
    # sqrt(|m| / M) * 127 with the division once a block; 1.5 * 2^23 makes two's complement of negative codes.
    magnitude = tl.abs(m)
    largest = tl.max(magnitude, 1)
    shrink = _reciprocal(tl.maximum(largest, SMALLEST))
    code = tl.sqrt(magnitude * shrink[:, None]).to(tl.int32, bitcast=True) | (
        m.to(tl.int32, bitcast=True) & -2147483648
    )
    tl.store(tensors[1] + at, _low_byte(code.to(tl.float32, bitcast=True) * 127.0 + 12582912.0), mask=inside)
    tl.store(tensors[2] + blocks, largest * new1, mask=block_inside)
    largest = tl.max(root, 1)
    # A hair less than 1 / largest: with it no code passes 255.
    shrink = _reciprocal(tl.maximum(largest, SMALLEST)) * 0.9999997
    # 1 + the upper 16 bits over 2^16; less 1.5, rounding to nearest becomes rounding down after adding them.
    uniform = (((bits >> 9) & 0x7FFF80) | 0x3F800000).to(tl.float32, bitcast=True)
    value = tl.sqrt(root * shrink[:, None]) * 255.0 + uniform
    value = tl.maximum(value, tl.where(root > 0, 2.5, 1.5))
    tl.store(tensors[3] + at, _low_byte(value + 8388606.5), mask=inside)
    tl.store(tensors[4] + blocks, largest * new2_root, mask=block_inside)


# A whole number that happens to be 1 would become a constant of another kernel.
@triton.jit(do_not_specialize=["seed", "index", "n", "first"])
def update(
    grad, master, average_codes, average_scales, root_codes, root_scales, numbers, step, clip, survived, seed, index, group_lr_factor, decay,
    beta1, new1, beta2_root, new2_root, eps, first, n, CLIP: tl.constexpr, STOCHASTIC: tl.constexpr, DECAY: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Updates n elements, from the parameter's element `first` on, of which the pointers are the first."""
    # One 64-bit base for the program, 32-bit offsets inside it.
    row = tl.program_id(0) * ROWS
    base = row.to(tl.int64) * 256
    rows = tl.arange(0, ROWS)
    at = rows[:, None] * 256 + tl.arange(0, 256)[None, :]
    inside = (at < n - base) | WHOLE
    block_inside = (rows * 256 < n - base) | WHOLE
    tensors = (
        master + base,
        average_codes + base,
        average_scales + row,
        root_codes + base,
        root_scales + row,
    )
    g = _wide(tl.load(grad + base + at, mask=inside, other=0.0))
    start = first.to(tl.uint32) + (row + rows).to(tl.uint32) * 256
    _apply(
        g, _read(tensors, at, rows, inside, block_inside), tensors, at, rows, inside, block_inside, numbers, step, clip,
        survived + tl.program_id(0) * 2, start, seed, index, group_lr_factor, decay, beta1, new1, beta2_root, new2_root, eps,
        CLIP, STOCHASTIC, DECAY, WHOLE,
    )  # fmt: skip


@triton.jit
def _pointer(table, place, KIND: tl.constexpr):
    return tl.multiple_of(
        tl.load(table + place).to(tl.pointer_type(KIND)), 16
    )  # torch aligns what it allocates


@triton.jit(do_not_specialize=["seed"])
def update_vectors(
    table, lr_factors, grads, numbers, step, clip, survived, seed, beta1, new1, beta2_root, new2_root, eps, CLIP: tl.constexpr,
    STOCHASTIC: tl.constexpr, KIND: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Updates many small parameters in one launch, without decay: one a program of the first axis.

    Args:
        table: int64 [count, 9]: addresses of master, average codes and scales, root codes and scales;
            elements; the first of its elements in `grads`, the first of its pairs in `survived`; its number
            for the random bits.
        lr_factors: float32 [count].
        grads: float32.
        KIND: Element type of the masters.
    """
    row = tl.program_id(1) * ROWS
    rows = tl.arange(0, ROWS)
    entry = table + tl.program_id(0) * 9
    n = tl.load(entry + 5)
    if row * 256 < n:
        at = (row + rows)[:, None] * 256 + tl.arange(0, 256)[None, :]
        inside, block_inside = at < n, (row + rows) * 256 < n
        tensors = (
            _pointer(entry, 0, KIND), _pointer(entry, 1, tl.uint8), _pointer(entry, 2, tl.float32), _pointer(entry, 3, tl.uint8),
            _pointer(entry, 4, tl.float32),
        )  # fmt: skip
        g = tl.load(grads + tl.load(entry + 6) + at, mask=inside, other=0.0)
        pair = survived + (tl.load(entry + 7) + tl.program_id(1)) * 2
        _apply(
            g, _read(tensors, at, row + rows, inside, block_inside), tensors, at, row + rows, inside, block_inside, numbers, step, clip,
            pair, (row + rows).to(tl.uint32) * 256, seed, tl.load(entry + 8), tl.load(lr_factors + tl.program_id(0)), 0.0, beta1, new1,
            beta2_root, new2_root, eps, CLIP, STOCHASTIC, False, False,
        )  # fmt: skip
