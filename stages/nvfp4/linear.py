"""A linear layer that multiplies by the NVFP4 rounding of its master; its gradient is straight-through."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import ScaleFormat
from stages.nvfp4.fake_quantize import fake_quantize


class _StraightThrough(torch.autograd.Function):
    """NVFP4 values forward, identity backward (Bengio et al. 2013, arXiv 1308.3432)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx, weight: torch.Tensor, rule: ScaleRule, dtype: torch.dtype, scale_format: ScaleFormat
    ) -> torch.Tensor:
        ctx.weight_dtype = weight.dtype
        return fake_quantize(weight, rule, dtype, scale_format)

    @staticmethod
    def backward(ctx, grad: torch.Tensor):  # type: ignore[override]
        return grad.to(ctx.weight_dtype), None, None, None


class Linear(nn.Module):
    """`x @ w.T` without bias, where w is the weight itself (`rule` None) or its NVFP4 rounding by `rule`.

    Without a gradient the rounded weight is cached until the weight changes, so that decoding token by token
    rounds once.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.rule: ScaleRule | None = None
        self.scale_format = ScaleFormat.E4M3
        self._cached: tuple[tuple[int, torch.dtype], torch.Tensor] | None = None

    def effective_weight(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight [out, in] that the matrix product uses, in `dtype`."""
        if self.rule is None:
            return self.weight.to(dtype)
        if torch.is_grad_enabled() and self.weight.requires_grad:
            self._cached = None
            return _StraightThrough.apply(self.weight, self.rule, dtype, self.scale_format)
        key = (self.weight._version, dtype)
        if self._cached is None or self._cached[0] != key:
            self._cached = (key, fake_quantize(self.weight, self.rule, dtype, self.scale_format))
        return self._cached[1]

    def clear_cache(self) -> None:
        """Frees the cached rounded weight."""
        self._cached = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, in] to […, out], in the dtype of `x`."""
        return F.linear(x, self.effective_weight(x.dtype))
