"""NVFP4 rounding of BF16 weights in Triton: the results of `stages.nvfp4.codec`, bit for bit, in one pass.

The number of instructions bounds `search`, so nearly all of them work on two values at once: a word holds two
neighbours, as BF16 or as float16. One thread owns a block of 16, as two loads of four words, so that sums and
maxima never leave it. These facts make it exact; `tests/stages/nvfp4/test_rounding_kernels.py` checks the
first three for every BF16 value over every E4M3 scale:

- Half precision is enough to find the nearest code. A BF16 value over an E4M3 scale is either exactly halfway
  between two codes or at least 2^-8 of itself away from that, and its product with the reciprocal, rounded
  upwards, has a smaller error. Halfway, both codes have the same error: the search may take either.
- The stored values may not: there the reciprocal has two float16 parts, and the quotient is the float16
  nearest to the true one.
- Code times scale has at most six significant bits, so the error of a value is a BF16 value: one fused
  operation computes it.
- Only amax/6 and its lower neighbour can saturate, except above 6 * 448, where every candidate is 448.
- E4M3 scales are rounded with float32 arithmetic, not with a hardware type: it runs on every GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import BLOCK

_BLOCKS = 128  # in one program: one for each thread of 4 warps


@triton.jit
def _power(x):
    """The power of two at or below |x|."""
    return (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _spacing(scale):
    """Distance from an E4M3 value to the next one up."""
    return tl.maximum(_power(scale), 0.015625) * 0.125  # subnormals below 2^-6


@triton.jit
def _to_e4m3(x):
    """The nearest E4M3 value within its positive range, as float32."""
    x = tl.minimum(tl.maximum(x, 0.001953125), 448.0)
    rounder = _spacing(x) * 12582912.0  # 1.5 * 2^23: to the nearest multiple, ties to even
    return (x + rounder) - rounder


@triton.jit
def _below(scale):
    """The E4M3 value before this one, not below the smallest."""
    return tl.maximum(scale - _spacing(scale * 0.96875), 0.001953125)


@triton.jit
def _above(scale):
    return tl.minimum(scale + _spacing(scale), 448.0)


@triton.jit
def _to_e4m3_byte(scale):
    """The byte of an E4M3 value as int32; 127 for NaN."""
    bits = scale.to(tl.int32, bitcast=True)
    byte = tl.where(scale < 0.015625, (scale * 512.0).to(tl.int32), (bits >> 20) - (120 << 3))
    return tl.where(scale == scale, byte, 127)


@triton.jit
def _from_e4m3_byte(byte):
    """The value of a positive E4M3 byte (int32)."""
    normal = ((byte + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    value = tl.where(byte < 8, byte.to(tl.float32) * 0.001953125, normal)
    return tl.where(byte == 127, float("nan"), value)


@triton.jit
def _sixth(x):
    """x / 6: the product with 1/6, corrected once."""
    guess = x * 0.16666667163372040
    return tl.fma(tl.fma(guess, -6.0, x), 0.16666667163372040, guess)


@triton.jit
def _reciprocal(scale):
    """1 / scale within a unit in the last place."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [scale], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _to_float16x2(x):
    return tl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $1, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _to_bf16x2(x):
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $1, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _bf16x2_max(a, b):
    """Maximum of two words of BF16; NaN wins."""
    return tl.inline_asm_elementwise(
        "max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _bf16x2_sum(a, b):
    """Sum of two words of BF16, rounded once: the product with 1 is exact."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $0, $1, one, $2; }", "=r,r,r", [a, b],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _float16_magnitudes(word):
    """Two BF16 magnitudes as float16, exact where that matters; infinity above 65504."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 even, odd;
        shl.b32 even, $1, 16;
        and.b32 odd, $1, 0xffff0000;
        cvt.rn.f16x2.f32 $0, odd, even;
        }""",
        "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _quotient(magnitude, inverse, CLAMP: tl.constexpr):
    """Quotient of two float16 magnitudes by one scale, near enough to find a nearest code.

    Args:
        inverse: Reciprocal of the scale, rounded upwards, in both halves of a word.
        CLAMP: Needed where the quotient may round to more than 6.
    """
    if CLAMP:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 six; mov.b32 six, 0x46004600; mul.rn.f16x2 $0, $1, $2; min.f16x2 $0, $0, six; }",
            "=&r,r,r", [magnitude, inverse], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [magnitude, inverse], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _squared_errors(word, quotient, scale):
    """Squared rounding errors of two BF16 magnitudes.

    Adding 2^9 times the value (at least 2^9) and subtracting it again leaves half of the value's power of two
    as the last bit: that rounds to the nearest code. The float16 bits of a code, shifted right by three, are
    the BF16 bits of 2^-112 times the code; the shift drops zeros only.

    Args:
        scale: -2^112 times the scale, twice, as BF16.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 step, code, c;
        mov.b32 c, 0x3c003c00;
        max.f16x2 step, $2, c;
        mov.b32 c, 0x60006000;
        fma.rn.f16x2 code, step, c, $2;
        mov.b32 c, 0xe000e000;
        fma.rn.f16x2 code, step, c, code;
        shr.u32 code, code, 3;
        fma.rn.bf16x2 code, code, $3, $1;
        mov.b32 c, 0x80008000;
        fma.rn.bf16x2 $0, code, code, c;
        }""",
        "=r,r,r,r", [word, quotient, scale], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _round_values(word, magnitude, scale):
    """NVFP4 values of two BF16 values.

    Args:
        magnitude: Their `_float16_magnitudes`.
        scale: float32, broadcast to the shape of `word`.
    """
    inverse = _reciprocal(scale)
    high = _to_float16x2(inverse)
    low = _to_float16x2(inverse - high.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32))
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 y, step, c;
        mul.rn.f16x2 y, $2, $4;
        fma.rn.f16x2 y, $2, $3, y;
        mov.b32 c, 0x46004600;
        min.f16x2 y, y, c;
        mov.b32 c, 0x3c003c00;
        max.f16x2 step, y, c;
        mov.b32 c, 0x60006000;
        fma.rn.f16x2 y, step, c, y;
        mov.b32 c, 0xe000e000;
        fma.rn.f16x2 y, step, c, y;
        shr.u32 y, y, 3;
        mov.b32 c, 0x80008000;
        fma.rn.bf16x2 y, y, $5, c;
        lop3.b32 $0, y, $1, c, 0xf8;
        }""",
        "=r,r,r,r,r,r", [word, magnitude, high, low, _to_bf16x2(scale * 5.192296858534828e33)],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _off_grid_remainder(magnitude):
    """Zero for two float16 magnitudes below 1 that are integer multiples of 2^-10."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 one, sum;
        mov.b32 one, 0x3c003c00;
        add.rn.f16x2 sum, $1, one;
        sub.rn.f16x2 sum, sum, one;
        sub.rn.f16x2 $0, sum, $1;
        }""",
        "=r,r", [magnitude], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _halves(x, BLOCKS: tl.constexpr, WORDS: tl.constexpr):
    """Even and odd words of [BLOCKS, WORDS]."""
    return tl.split(tl.reshape(x, [BLOCKS, WORDS // 2, 2]))


@triton.jit
def _sum_words(x, BLOCKS: tl.constexpr):
    """Sum of four words, neighbours first."""
    a, b = _halves(x, BLOCKS, 4)
    a, b = _halves(_bf16x2_sum(a, b), BLOCKS, 2)
    return _bf16x2_sum(tl.reshape(a, [BLOCKS]), tl.reshape(b, [BLOCKS]))


@triton.jit
def _unpack_bf16x2(word):
    """The two BF16 values of a word as float32."""
    return (word << 16).to(tl.float32, bitcast=True), (word & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _block_error(x, y, x_f16, y_f16, scale, BLOCKS: tl.constexpr, CLAMP: tl.constexpr):
    """Squared error [BLOCKS] of blocks whose magnitudes are the words x and y, each [BLOCKS, 4]."""
    inverse = _to_float16x2(_reciprocal(scale) * 1.00035)[:, None]  # rounding to nearest is then upwards
    scale = _to_bf16x2(scale * -5.192296858534828e33)[:, None]
    first = _squared_errors(x, _quotient(x_f16, inverse, CLAMP), scale)
    second = _squared_errors(y, _quotient(y_f16, inverse, CLAMP), scale)
    even, odd = _unpack_bf16x2(_bf16x2_sum(_sum_words(first, BLOCKS), _sum_words(second, BLOCKS)))
    return even + odd


@triton.jit
def _better(best, best_error, scale, error):
    better = (error < best_error) | ((error == best_error) & (scale < best))
    return tl.where(better, scale, best), tl.minimum(error, best_error)


@triton.jit
def _is_zero(x, BLOCKS: tl.constexpr, WORDS: tl.constexpr):
    """[BLOCKS] of words [BLOCKS, WORDS]: whether all are 0."""
    return tl.max((x != 0).to(tl.int32), 1) == 0


@triton.jit
def _block_scale(x, y, x_f16, y_f16, SEARCH: tl.constexpr, BLOCKS: tl.constexpr):
    """Scales [BLOCKS] of blocks whose magnitudes are the words x and y, each [BLOCKS, 4]; NaN from NaN."""
    a, b = _halves(_bf16x2_max(x, y), BLOCKS, 4)
    a, b = _halves(_bf16x2_max(a, b), BLOCKS, 2)
    even, odd = _unpack_bf16x2(tl.reshape(_bf16x2_max(a, b), [BLOCKS]))
    amax = tl.maximum(even, odd, propagate_nan=tl.PropagateNan.ALL)
    plain = _to_e4m3(_sixth(amax))
    best = plain
    if SEARCH:
        above = _above(plain)
        best = tl.where(plain <= 0.0078125, _above(above), _below(plain))
        error = _block_error(x, y, x_f16, y_f16, best, BLOCKS, True)
        best, error = _better(best, error, plain, _block_error(x, y, x_f16, y_f16, plain, BLOCKS, True))
        huge = amax > 2688.0
        found = _block_error(x, y, x_f16, y_f16, above, BLOCKS, False)
        best, error = _better(best, error, above, tl.where(huge, float("inf"), found))
        scale = _to_e4m3(amax * 0.25)
        found = _block_error(x, y, x_f16, y_f16, scale, BLOCKS, False)
        best, error = _better(best, error, scale, tl.where(huge, float("inf"), found))
        even_words, _ = _halves(x_f16, BLOCKS, 4)
        retry = (error > 0) & (amax <= 0.087890625) & _is_zero(_off_grid_remainder(even_words), BLOCKS, 2)
        if tl.max(retry.to(tl.int32), 0) > 0:
            retry = retry & _is_zero(_off_grid_remainder(x_f16) | _off_grid_remainder(y_f16), BLOCKS, 4)
            for candidate in range(5):
                largest = tl.where(candidate < 2, 3.0 - candidate, 2.5 - 0.5 * candidate)  # 3, 2, 1.5, 1, 0.5
                scale = _to_e4m3(tl.div_rn(amax, largest))
                found = _block_error(x, y, x_f16, y_f16, scale, BLOCKS, True)
                best, error = _better(best, error, scale, tl.where(retry, found, float("inf")))
    return tl.where(amax == amax, best, amax)


@triton.jit
def _store(out, at, words, mask):
    """Writes words of BF16 at the word offsets `at`: unchanged, or converted to the dtype of `out`."""
    if out.dtype.element_ty == tl.int32:
        tl.store(out + at, words, mask=mask)
    else:
        even, odd = _unpack_bf16x2(words)
        tl.store(out + 2 * at, even.to(out.dtype.element_ty), mask=mask)
        tl.store(out + 2 * at + 1, odd.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _round_kernel(
    weight, out, scales, blocks, REUSE_SCALES: tl.constexpr, STORE_SCALES: tl.constexpr,
    SEARCH: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """See `round_into`. `weight` and, if BF16, `out` are words of two values."""
    row = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    mask = row < blocks
    if REUSE_SCALES:  # no sum over a block is needed: threads load and store neighbouring words
        scale = _from_e4m3_byte(tl.load(scales + row[:, None], mask=mask[:, None], other=8).to(tl.int32))
        at = row.to(tl.int64)[:, None] * 8 + tl.arange(0, 8)[None, :]
        x = tl.load(weight + at, mask=mask[:, None], other=0)
        _store(out, at, _round_values(x, _float16_magnitudes(x & 0x7FFF7FFF), scale), mask[:, None])
        return
    at = row.to(tl.int64)[:, None] * 8 + tl.arange(0, 4)[None, :]
    x = tl.load(weight + at, mask=mask[:, None], other=0)
    y = tl.load(weight + at + 4, mask=mask[:, None], other=0)
    a, b = x & 0x7FFF7FFF, y & 0x7FFF7FFF
    a_f16, b_f16 = _float16_magnitudes(a), _float16_magnitudes(b)
    scale = _block_scale(a, b, a_f16, b_f16, SEARCH, BLOCKS)
    _store(out, at, _round_values(x, a_f16, scale[:, None]), mask[:, None])
    _store(out, at + 4, _round_values(y, b_f16, scale[:, None]), mask[:, None])
    if STORE_SCALES:
        tl.store(scales + row, _to_e4m3_byte(scale).to(tl.uint8), mask=mask)


def round_into(
    weight: torch.Tensor,
    out: torch.Tensor,
    scales: torch.Tensor | None,
    *,
    rule: ScaleRule = ScaleRule.SEARCH,
    reuse_scales: bool = False,
) -> None:
    """Writes the NVFP4 values of `weight` to `out`. A block with NaN becomes NaN.

    Args:
        weight: BF16 [out, in] contiguous, `in` a multiple of 16.
        out: Of the same shape, any floating dtype.
        scales: uint8 [out * in / 16] E4M3 bytes: written, or with `reuse_scales` read. None stores none.
        rule: `amax` or `search`.
        reuse_scales: True if `scales` are those of this very weight: rounding is then as fast as a copy.
    """
    blocks = weight.numel() // BLOCK
    _round_kernel[(triton.cdiv(blocks, _BLOCKS),)](
        weight.view(torch.int32),
        out.view(torch.int32) if out.dtype == torch.bfloat16 else out,
        weight if scales is None else scales,
        blocks,
        REUSE_SCALES=reuse_scales,
        STORE_SCALES=scales is not None and not reuse_scales,
        SEARCH=rule is ScaleRule.SEARCH,
        BLOCKS=_BLOCKS,
        num_warps=4,
        enable_fp_fusion=False,
    )


def fake_quantize_fused(weight: torch.Tensor, rule: ScaleRule, dtype: torch.dtype) -> torch.Tensor:
    """`codec.fake_quantize_reference` for BF16 CUDA tensors, E4M3 scales, the rules `amax` and `search`."""
    weight = weight.detach().contiguous()
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    round_into(weight, out, None, rule=rule)
    return out
