"""NVFP4 rounding as one Triton kernel: what `stages.nvfp4.codec` computes, in one pass over the weight.

The arithmetic is the reference's, operation by operation (true division, no fused multiply-add, errors summed pairwise), so both give
the same bits. E4M3 scales are rounded with float32 arithmetic rather than a hardware type, which runs on every GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stages.contract import ScaleRule

_BLOCKS = 64  # blocks of 16 in one program


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
def _e2m1(x):
    """Magnitude of the E2M1 rounding of x."""
    a = tl.abs(x)
    spacing = tl.minimum(tl.maximum(_power(a), 1.0), 4.0) * 0.5
    return tl.minimum(_round_to(a, spacing), 6.0)


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
def _sum16(x, BLOCKS: tl.constexpr):
    """Sum of 16 columns in a fixed order: neighbours first."""
    a, b = tl.split(tl.reshape(x, [BLOCKS, 8, 2]))
    a, b = tl.split(tl.reshape(a + b, [BLOCKS, 4, 2]))
    a, b = tl.split(tl.reshape(a + b, [BLOCKS, 2, 2]))
    a, b = tl.split(tl.reshape(a + b, [BLOCKS, 1, 2]))
    return tl.reshape(a + b, [BLOCKS])


@triton.jit
def _error(x, scale, BLOCKS: tl.constexpr):
    d = _e2m1(tl.div_rn(x, scale[:, None])) * scale[:, None] - tl.abs(x)
    return _sum16(d * d, BLOCKS)


@triton.jit
def _better(x, best, best_error, scale, BLOCKS: tl.constexpr):
    error = _error(x, scale, BLOCKS)
    better = (error < best_error) | ((error == best_error) & (scale < best))
    return tl.where(better, scale, best), tl.minimum(error, best_error)


@triton.jit
def block_scale(x, SEARCH: tl.constexpr, BLOCKS: tl.constexpr):
    """Scales [BLOCKS] of blocks x [BLOCKS, 16], float32."""
    amax = tl.max(tl.abs(x), 1)
    plain = _e4m3(tl.div_rn(amax, 6.0))
    best = plain
    if SEARCH:
        best = _below(plain)
        error = _error(x, best, BLOCKS)
        best, error = _better(x, best, error, plain, BLOCKS)
        best, error = _better(x, best, error, _above(plain), BLOCKS)
        best, error = _better(x, best, error, _above(_above(plain)), BLOCKS)
        best, error = _better(x, best, error, _e4m3(tl.div_rn(amax, 4.0)), BLOCKS)
        best, error = _better(x, best, error, _e4m3(tl.div_rn(amax, 3.0)), BLOCKS)
        best, error = _better(x, best, error, _e4m3(tl.div_rn(amax, 2.0)), BLOCKS)
    return best


@triton.jit
def _fake_kernel(weight, out, n, SEARCH: tl.constexpr, BLOCKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = row[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32)
    scale = block_scale(x, SEARCH, BLOCKS)
    value = _e2m1(tl.div_rn(x, scale[:, None])) * scale[:, None]
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    signed = (value.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    tl.store(out + at, signed.to(out.dtype.element_ty), mask=at < n)


def fake_quantize_fused(weight: torch.Tensor, rule: ScaleRule, dtype: torch.dtype) -> torch.Tensor:
    """`stages.nvfp4.codec.fake_quantize` with E4M3 scales, for CUDA tensors and the rules `amax` and `search`."""
    weight = weight.detach().contiguous()
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    n = weight.numel()
    grid = (triton.cdiv(n, 16 * _BLOCKS),)
    _fake_kernel[grid](weight, out, n, SEARCH=rule is ScaleRule.SEARCH, BLOCKS=_BLOCKS, num_warps=4, enable_fp_fusion=False)
    return out
