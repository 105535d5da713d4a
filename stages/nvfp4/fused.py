"""NVFP4 rounding of BF16 weights as Triton kernels: what `stages.nvfp4.codec` computes, bit for bit, in one
pass over the weight.

What bounds `search` is the number of instructions, so nearly all of them work on two values at once: a word
holds two neighbours, as BF16 or as float16. One thread owns a block of 16, as two loads of four words: sums
and maxima never leave it. What makes it exact, each checked for every BF16 value over every E4M3 scale in
`tests/stages/nvfp4/test_codec.py`:

- Half precision is enough to find the nearest code. A BF16 value over an E4M3 scale is either exactly halfway
  between two codes or at least 2^-8 of itself away from that. A product with the reciprocal, rounded upwards,
  is nearer than that. Halfway either code is off by as much: for an error it does not matter which.
- It does for the codes themselves: there the reciprocal has two float16 parts, and the quotient is the true
  one's nearest float16.
- Code times scale has six significant bits at most, so what a value is off by is a BF16 value: one fused
  operation gives it.
- Only amax/6 and its lower neighbour can saturate, except past 6 * 448, where all the other candidates are
  448 as amax/6 is.
- E4M3 scales are rounded with float32 arithmetic rather than a hardware type, which runs on every GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stages.contract import ScaleRule
from stages.nvfp4.codec import BLOCK

_BLOCKS = 128  # in one program: one for each of the threads of 4 warps


@triton.jit
def _power(x):
    """The power of two at or below |x|."""
    return (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _spacing(scale):
    """Distance from an E4M3 value to the next one up."""
    return tl.maximum(_power(scale), 0.015625) * 0.125  # subnormals below 2^-6


@triton.jit
def _e4m3(x):
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
def _e4m3_byte(scale):
    """The byte of an E4M3 value as int32; 127 for NaN."""
    bits = scale.to(tl.int32, bitcast=True)
    byte = tl.where(scale < 0.015625, (scale * 512.0).to(tl.int32), (bits >> 20) - (120 << 3))
    return tl.where(scale == scale, byte, 127)


@triton.jit
def _e4m3_value(byte):
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
    """1 / scale but for a unit in the last place."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [scale], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _float16_twice(x):
    return tl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $1, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _bf16_twice(x):
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $1, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _word_max(a, b):
    """Of two words of BF16, NaN before all."""
    return tl.inline_asm_elementwise(
        "max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _word_sum(a, b):
    """Of two words of BF16, rounded once: the product with 1 is exact."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $0, $1, one, $2; }", "=r,r,r", [a, b],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _sizes(word):
    """Two BF16 magnitudes as float16, exact where that matters; infinity past 65504."""
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
def _quotient(size, inverse, CLAMP: tl.constexpr):
    """Of two float16 magnitudes by one scale, near enough to find a nearest code. CLAMP is needed where it
    may round past 6.
    """
    if CLAMP:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 six; mov.b32 six, 0x46004600; mul.rn.f16x2 $0, $1, $2; min.f16x2 $0, $0, six; }", "=&r,r,r", [size, inverse],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [size, inverse], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _squares(word, quotient, scale):
    """Squares of what two BF16 magnitudes are off by.

    2^9 times a value has half its power of two as the last bit: rounding to that is to the nearest code. A
    code's bits as float16, three places down, are those of 2^-112 times the code as BF16; that cuts off zeros
    only.

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
def _values(word, size, scale):
    """NVFP4 values of two BF16 values.

    Args:
        size: Their `_sizes`.
        scale: float32, of the same shape but for axes of 1.
    """
    inverse = _reciprocal(scale)
    high = _float16_twice(inverse)
    low = _float16_twice(inverse - high.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32))
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
        "=r,r,r,r,r,r", [word, size, high, low, _bf16_twice(scale * 5.192296858534828e33)], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _off_grid(size):
    """Zero for two float16 magnitudes below 1 that are whole multiples of 2^-10."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 one, sum;
        mov.b32 one, 0x3c003c00;
        add.rn.f16x2 sum, $1, one;
        sub.rn.f16x2 sum, sum, one;
        sub.rn.f16x2 $0, sum, $1;
        }""",
        "=r,r", [size], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _halves(x, BLOCKS: tl.constexpr, WORDS: tl.constexpr):
    """Even and odd words of [BLOCKS, WORDS]."""
    return tl.split(tl.reshape(x, [BLOCKS, WORDS // 2, 2]))


@triton.jit
def _sum4(x, BLOCKS: tl.constexpr):
    """Sum of four words, neighbours first."""
    a, b = _halves(x, BLOCKS, 4)
    a, b = _halves(_word_sum(a, b), BLOCKS, 2)
    return _word_sum(tl.reshape(a, [BLOCKS]), tl.reshape(b, [BLOCKS]))


@triton.jit
def _evens_odds(word):
    """The two BF16 values of a word as float32."""
    return (word << 16).to(tl.float32, bitcast=True), (word & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _error(x, y, x_size, y_size, scale, BLOCKS: tl.constexpr, CLAMP: tl.constexpr):
    """Error [BLOCKS] of blocks whose magnitudes are the words x and y, each [BLOCKS, 4]."""
    inverse = _float16_twice(_reciprocal(scale) * 1.00035)[:, None]  # enough that to the nearest is upwards
    scale = _bf16_twice(scale * -5.192296858534828e33)[:, None]
    first = _squares(x, _quotient(x_size, inverse, CLAMP), scale)
    second = _squares(y, _quotient(y_size, inverse, CLAMP), scale)
    evens, odds = _evens_odds(_word_sum(_sum4(first, BLOCKS), _sum4(second, BLOCKS)))
    return evens + odds


@triton.jit
def _better(best, best_error, scale, error):
    better = (error < best_error) | ((error == best_error) & (scale < best))
    return tl.where(better, scale, best), tl.minimum(error, best_error)


@triton.jit
def _is_zero(x, BLOCKS: tl.constexpr, WORDS: tl.constexpr):
    """[BLOCKS] of words [BLOCKS, WORDS]: whether all are 0."""
    return tl.max((x != 0).to(tl.int32), 1) == 0


@triton.jit
def _block_scale(x, y, x_size, y_size, SEARCH: tl.constexpr, BLOCKS: tl.constexpr):
    """Scales [BLOCKS] of blocks whose magnitudes are the words x and y, each [BLOCKS, 4]. NaN for blocks with
    NaN.
    """
    a, b = _halves(_word_max(x, y), BLOCKS, 4)
    a, b = _halves(_word_max(a, b), BLOCKS, 2)
    evens, odds = _evens_odds(tl.reshape(_word_max(a, b), [BLOCKS]))
    amax = tl.maximum(evens, odds, propagate_nan=tl.PropagateNan.ALL)
    plain = _e4m3(_sixth(amax))
    best = plain
    if SEARCH:
        above = _above(plain)
        best = tl.where(plain <= 0.0078125, _above(above), _below(plain))
        error = _error(x, y, x_size, y_size, best, BLOCKS, True)
        best, error = _better(best, error, plain, _error(x, y, x_size, y_size, plain, BLOCKS, True))
        huge = amax > 2688.0
        best, error = _better(
            best,
            error,
            above,
            tl.where(huge, float("inf"), _error(x, y, x_size, y_size, above, BLOCKS, False)),
        )
        scale = _e4m3(amax * 0.25)
        best, error = _better(
            best,
            error,
            scale,
            tl.where(huge, float("inf"), _error(x, y, x_size, y_size, scale, BLOCKS, False)),
        )
        few, _ = _halves(x_size, BLOCKS, 4)
        odd = (error > 0) & (amax <= 0.087890625) & _is_zero(_off_grid(few), BLOCKS, 2)
        if tl.max(odd.to(tl.int32), 0) > 0:
            odd = odd & _is_zero(_off_grid(x_size) | _off_grid(y_size), BLOCKS, 4)
            for more in range(5):
                largest = tl.where(more < 2, 3.0 - more, 2.5 - 0.5 * more)  # 3, 2, 1.5, 1, 0.5
                scale = _e4m3(tl.div_rn(amax, largest))
                found = _error(x, y, x_size, y_size, scale, BLOCKS, True)
                best, error = _better(best, error, scale, tl.where(odd, found, float("inf")))
    return tl.where(amax == amax, best, amax)


@triton.jit
def _store(out, at, words, inside):
    """Writes words of BF16 at places in words: as they are, or value by value in another dtype."""
    if out.dtype.element_ty == tl.int32:
        tl.store(out + at, words, mask=inside)
    else:
        evens, odds = _evens_odds(words)
        tl.store(out + 2 * at, evens.to(out.dtype.element_ty), mask=inside)
        tl.store(out + 2 * at + 1, odds.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _round_kernel(
    weight, out, scales, blocks, KNOWN: tl.constexpr, KEEP: tl.constexpr, SEARCH: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """`weight` and, if BF16, `out` are words."""
    row = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    inside = row < blocks
    if KNOWN:  # nothing to sum: whole rows, which load and store without gaps
        scale = _e4m3_value(tl.load(scales + row[:, None], mask=inside[:, None], other=8).to(tl.int32))
        at = row.to(tl.int64)[:, None] * 8 + tl.arange(0, 8)[None, :]
        x = tl.load(weight + at, mask=inside[:, None], other=0)
        _store(out, at, _values(x, _sizes(x & 0x7FFF7FFF), scale), inside[:, None])
        return
    at = row.to(tl.int64)[:, None] * 8 + tl.arange(0, 4)[None, :]
    x = tl.load(weight + at, mask=inside[:, None], other=0)
    y = tl.load(weight + at + 4, mask=inside[:, None], other=0)
    a, b = x & 0x7FFF7FFF, y & 0x7FFF7FFF
    a_size, b_size = _sizes(a), _sizes(b)
    scale = _block_scale(a, b, a_size, b_size, SEARCH, BLOCKS)
    _store(out, at, _values(x, a_size, scale[:, None]), inside[:, None])
    _store(out, at + 4, _values(y, b_size, scale[:, None]), inside[:, None])
    if KEEP:
        tl.store(scales + row, _e4m3_byte(scale).to(tl.uint8), mask=inside)


def round_into(
    weight: torch.Tensor,
    out: torch.Tensor,
    scales: torch.Tensor | None,
    *,
    rule: ScaleRule = ScaleRule.SEARCH,
    known: bool = False,
) -> None:
    """Writes the NVFP4 values of `weight` to `out`. A block with NaN becomes NaN.

    Args:
        weight: BF16 [out, in] contiguous, `in` a multiple of 16.
        out: Of the same shape, any floating dtype.
        scales: uint8 [out * in / 16] E4M3 bytes: written, or with `known` read, which is as cheap as a copy.
            None keeps none.
        rule: `amax` or `search`.
        known: True if `scales` are those of this very weight.
    """
    blocks = weight.numel() // BLOCK
    _round_kernel[(triton.cdiv(blocks, _BLOCKS),)](
        weight.view(torch.int32),
        out.view(torch.int32) if out.dtype == torch.bfloat16 else out,
        weight if scales is None else scales,
        blocks,
        KNOWN=known,
        KEEP=scales is not None and not known,
        SEARCH=rule is ScaleRule.SEARCH,
        BLOCKS=_BLOCKS,
        num_warps=4,
        enable_fp_fusion=False,
    )


def fake_quantize_fused(weight: torch.Tensor, rule: ScaleRule, dtype: torch.dtype) -> torch.Tensor:
    """`stages.nvfp4.codec.fake_quantize` with E4M3 scales, for BF16 CUDA tensors and the rules `amax` and
    `search`.
    """
    weight = weight.detach().contiguous()
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    round_into(weight, out, None, rule=rule)
    return out
