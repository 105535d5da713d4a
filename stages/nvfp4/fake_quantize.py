"""Rounding of a weight to NVFP4 values: the Triton kernels where they apply, else the reference."""

from __future__ import annotations

import torch

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import ScaleFormat, check_shape, fake_quantize_reference


def has_kernel(weight: torch.Tensor, rule: ScaleRule | None, scale_format: ScaleFormat) -> bool:
    """Whether `stages.nvfp4.rounding_kernels` rounds such a weight."""
    on_gpu = weight.is_cuda and weight.dtype == torch.bfloat16
    return on_gpu and rule in (ScaleRule.AMAX, ScaleRule.SEARCH) and scale_format is ScaleFormat.E4M3


def fake_quantize(
    weight: torch.Tensor, rule: ScaleRule, dtype: torch.dtype, scale_format: ScaleFormat = ScaleFormat.E4M3
) -> torch.Tensor:
    """See `stages.nvfp4.codec.fake_quantize_reference`; the result is the same bit for bit."""
    if not has_kernel(weight, rule, scale_format):
        return fake_quantize_reference(weight, rule, dtype, scale_format)
    check_shape(weight)
    from stages.nvfp4.rounding_kernels import fake_quantize_fused  # Triton comes with CUDA builds only

    return fake_quantize_fused(weight, rule, dtype)
