"""NVFP4 rounding as Triton kernels: what `stages.nvfp4.codec` computes, in one pass over the weight.

The arithmetic gives the reference's bits (no contraction to fused multiply-add where that would round otherwise, errors summed
neighbours first), and E4M3 scales are rounded with float32 arithmetic rather than a hardware type, which runs on every GPU.

What bounds `search` is the number of instructions. What keeps them few:
- One thread owns a block of 16, as two loads of eight columns: sums and maxima never leave it.
- A BF16 value over an E4M3 scale is either exactly halfway between two codes or at least 2^-8 of itself away from that. The product with
  the reciprocal, less 3 * 2^-27, rounds as the true quotient does: checked for all 128 significands over all 8, in every range that
  matters. float32 weights are divided.
- Code times scale has six significant bits at most, so its difference from the value may be one fused operation.
- Only amax/6 and its lower neighbour can saturate, except past 6 * 448, where all the other candidates are 448 as amax/6 is.
- Of the seven candidates six can win. Twice a scale reaches no value that the scale itself does not, where no code exceeds 3: so amax/3
  matters only as an odd multiple of 2^-9, and so does amax/2 unless E4M3 saturates. amax/4 is often one of amax/6's neighbours. In the
  one range where none of the three falls away (amax above 26 * 2^-9, below 27), amax/6's lower neighbour loses to its second upper one.
- Blocks of whole multiples of 2^-10, which have three candidates more, have an error that is a whole multiple of 2^-20, with every
  scale: one test a block keeps the search for them out of the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stages.contract import ScaleRule

_BLOCKS = 128  # blocks of 16 in one program: one for each of the threads of 4 warps


@triton.jit
def _power(x):
    """The power of two at or below |x|."""
    return (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _round_to(x, spacing):
    """Nearest multiple of a power of two, ties to even."""
    rounder = spacing * 12582912.0  # 1.5 * 2^23
    return (x + rounder) - rounder


@triton.jit
def _spacing(scale):
    """Distance from an E4M3 value to the next one up."""
    return tl.maximum(_power(scale), 0.015625) * 0.125  # subnormals below 2^-6


@triton.jit
def _e4m3(x):
    x = tl.minimum(tl.maximum(x, 0.001953125), 448.0)
    return _round_to(x, _spacing(x))


@triton.jit
def _below(scale):
    """The E4M3 value before this one, not below the smallest."""
    return tl.maximum(scale - _spacing(scale * 0.96875), 0.001953125)


@triton.jit
def _above(scale):
    return tl.minimum(scale + _spacing(scale), 448.0)


@triton.jit
def _e4m3_byte(scale):
    """The byte of an E4M3 value as int32."""
    bits = scale.to(tl.int32, bitcast=True)
    return tl.where(scale < 0.015625, (scale * 512.0).to(tl.int32), (bits >> 20) - (120 << 3))


@triton.jit
def e4m3_value(byte):
    """The value of a positive E4M3 byte (int32)."""
    normal = ((byte + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    return tl.where(byte < 8, byte.to(tl.float32) * 0.001953125, normal)


@triton.jit
def reciprocal(scale):
    """1 / scale for E4M3 values: the hardware's guess, improved once."""
    guess = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [scale], dtype=tl.float32, is_pure=True, pack=1)
    return tl.fma(tl.fma(-scale, guess, 1.0), guess, guess)


@triton.jit
def _sixth(x):
    """x / 6: the product with 1/6, corrected once."""
    guess = x * 0.16666667163372040
    return tl.fma(tl.fma(guess, -6.0, x), 0.16666667163372040, guess)


@triton.jit
def _codes(a, scale, inverse, DIVIDE: tl.constexpr, CLAMP: tl.constexpr):
    """E2M1 rounding of a / scale for magnitudes a [BLOCKS, 8 or 16]; `inverse` is 1 / scale. NaN stays.

    CLAMP is needed where a / scale may round past 6.
    """
    if DIVIDE:
        y = tl.minimum(tl.div_rn(a, scale[:, None]), 6.0, propagate_nan=tl.PropagateNan.ALL)
        rounder = _power(tl.maximum(y, 1.0)) * 6291456.0  # half the power of two, times 1.5 * 2^23
        return (y + rounder) - rounder
    y = tl.fma(a, inverse[:, None], -2.2351741790771484e-08)
    if CLAMP:
        y = tl.minimum(y, 6.0, propagate_nan=tl.PropagateNan.ALL)
    # y plus 2^22 times itself is rounded to half y's power of two, and to 0.5 below 1.
    grid = tl.maximum(y, 1.0)
    return tl.fma(grid, -4194304.0, tl.fma(grid, 4194304.0, y))


@triton.jit
def _square_sum(x, DIVIDE: tl.constexpr, BLOCKS: tl.constexpr):
    """Sum of squares of 8 columns, neighbours first. The square of what a BF16 value is off by is exact in float32 and needs no rounding
    of its own, below 2^18 by counting bits and up to 2^30 in its effect (`tests/stages/test_codec.py`). Past that the last scales'
    errors are the same but for rounding, and another of them may win than in the reference.
    """
    a, b = tl.split(tl.reshape(x, [BLOCKS, 4, 2]))
    pairs = a * a + b * b if DIVIDE else tl.fma(b, b, a * a)
    a, b = tl.split(tl.reshape(pairs, [BLOCKS, 2, 2]))
    a, b = tl.split(tl.reshape(a + b, [BLOCKS, 1, 2]))
    return tl.reshape(a + b, [BLOCKS])


@triton.jit
def _error(a, b, scale, DIVIDE: tl.constexpr, BLOCKS: tl.constexpr, CLAMP: tl.constexpr):
    inverse = reciprocal(scale)
    negative = tl.broadcast_to(-scale[:, None], [BLOCKS, 8])
    first = tl.fma(_codes(a, scale, inverse, DIVIDE, CLAMP), negative, a)
    second = tl.fma(_codes(b, scale, inverse, DIVIDE, CLAMP), negative, b)
    return _square_sum(first, DIVIDE, BLOCKS) + _square_sum(second, DIVIDE, BLOCKS)


@triton.jit
def _better(best, best_error, scale, error):
    better = (error < best_error) | ((error == best_error) & (scale < best))
    return tl.where(better, scale, best), tl.minimum(error, best_error)


@triton.jit
def _whole(x):
    """Whether float32 values below 2^22 are whole numbers."""
    return (x + 12582912.0) - 12582912.0 == x


@triton.jit
def _block_scale(a, b, SEARCH: tl.constexpr, DIVIDE: tl.constexpr, BLOCKS: tl.constexpr):
    """Scales [BLOCKS] of blocks whose magnitudes are a and b, each [BLOCKS, 8] float32."""
    amax = tl.maximum(tl.max(a, 1), tl.max(b, 1))
    sixth = _sixth(amax)
    plain = _e4m3(sixth)
    best = plain
    if SEARCH:
        scale = _above(plain)
        next_scale = _above(scale)
        quarter, third, half = _e4m3(amax * 0.25), _e4m3(sixth * 2.0), _e4m3(amax * 0.5)
        # Seven candidates, of which six can win; see the module.
        new, odd_third, odd_half = quarter > next_scale, _whole(third * 256.0) == 0, _whole(half * 256.0) == 0
        best = tl.where(new & odd_third & odd_half, half, _below(plain))
        error = _error(a, b, best, DIVIDE, BLOCKS, True)
        best, error = _better(best, error, plain, _error(a, b, plain, DIVIDE, BLOCKS, True))
        huge = amax > 2688.0
        best, error = _better(best, error, scale, tl.where(huge, float("inf"), _error(a, b, scale, DIVIDE, BLOCKS, False)))
        scale = next_scale
        best, error = _better(best, error, scale, tl.where(huge, float("inf"), _error(a, b, scale, DIVIDE, BLOCKS, False)))
        scale = tl.where(new, quarter, tl.where(odd_third, third, half))
        best, error = _better(best, error, scale, tl.where(huge, float("inf"), _error(a, b, scale, DIVIDE, BLOCKS, False)))
        scale = tl.where(new & odd_third, third, half)
        best, error = _better(best, error, scale, tl.where(huge, float("inf"), _error(a, b, scale, DIVIDE, BLOCKS, False)))
        rare = (amax <= 0.0439453125) & _whole(amax * 1024.0) & _whole(tl.minimum(error * 1048576.0, 4194303.0))
        if tl.max(rare.to(tl.int32), 0) > 0:
            rare = rare & (tl.min(_whole(a * 1024.0).to(tl.int32), 1) > 0) & (tl.min(_whole(b * 1024.0).to(tl.int32), 1) > 0)
            for more in range(3):
                scale = _e4m3(tl.div_rn(amax, 1.5 - 0.5 * more))
                found = _error(a, b, scale, DIVIDE, BLOCKS, True)
                best, error = _better(best, error, scale, tl.where(rare, found, float("inf")))
    return best


@triton.jit
def signed(x, a, scale, inverse, DIVIDE: tl.constexpr):
    value = _codes(a, scale, inverse, DIVIDE, True) * scale[:, None]
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (value.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def _round_kernel(
    weight,
    out,
    scales,
    blocks,
    KNOWN: tl.constexpr,
    KEEP: tl.constexpr,
    SEARCH: tl.constexpr,
    DIVIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    inside = row < blocks
    if KNOWN:  # nothing to sum: whole rows, which load and store without gaps
        scale = e4m3_value(tl.load(scales + row, mask=inside, other=8).to(tl.int32))
        inverse = reciprocal(scale)
        at = row.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
        x = tl.load(weight + at, mask=inside[:, None], other=0.0).to(tl.float32)
        x = signed(x, tl.abs(x), scale, inverse, DIVIDE)
        tl.store(out + at, x.to(out.dtype.element_ty), mask=inside[:, None])
        return
    at = row.to(tl.int64)[:, None] * 16 + tl.arange(0, 8)[None, :]
    x = tl.load(weight + at, mask=inside[:, None], other=0.0).to(tl.float32)
    y = tl.load(weight + at + 8, mask=inside[:, None], other=0.0).to(tl.float32)
    a, b = tl.abs(x), tl.abs(y)
    scale = _block_scale(a, b, SEARCH, DIVIDE, BLOCKS)
    inverse = reciprocal(scale)
    tl.store(out + at, signed(x, a, scale, inverse, DIVIDE).to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(out + at + 8, signed(y, b, scale, inverse, DIVIDE).to(out.dtype.element_ty), mask=inside[:, None])
    if KEEP:
        tl.store(scales + row, _e4m3_byte(scale).to(tl.uint8), mask=inside)


def round_into(
    weight: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None, *, rule: ScaleRule = ScaleRule.SEARCH, known: bool = False
) -> None:
    """Writes the NVFP4 values of `weight` to `out`.

    Args:
        weight: [out, in] contiguous, BF16 or float32, `in` a multiple of 16.
        out: Of the same shape, any floating dtype.
        scales: uint8 [out * in / 16] E4M3 bytes: written, or with `known` read, which is as cheap as a copy. None keeps none.
        rule: `amax` or `search`.
        known: True if `scales` are those of this very weight.
    """
    blocks = weight.numel() // 16
    _round_kernel[(triton.cdiv(blocks, _BLOCKS),)](
        weight,
        out,
        out if scales is None else scales,
        blocks,
        KNOWN=known,
        KEEP=scales is not None and not known,
        SEARCH=rule is ScaleRule.SEARCH,
        DIVIDE=weight.dtype != torch.bfloat16,
        BLOCKS=_BLOCKS,
        num_warps=4,
        enable_fp_fusion=False,
    )


def fake_quantize_fused(weight: torch.Tensor, rule: ScaleRule, dtype: torch.dtype) -> torch.Tensor:
    """`stages.nvfp4.codec.fake_quantize` with E4M3 scales, for CUDA tensors and the rules `amax` and `search`."""
    weight = weight.detach().contiguous()
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    round_into(weight, out, None, rule=rule)
    return out
