"""Which weights have a kernel, and what the reference does with the others."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import ScaleFormat, decode, encode, fake_quantize_reference
from stages.nvfp4.fake_quantize import fake_quantize, has_kernel

WEIGHT = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)) * 0.02


def test_no_kernel_on_a_cpu() -> None:
    assert not any(has_kernel(WEIGHT.bfloat16(), rule, ScaleFormat.E4M3) for rule in ScaleRule)
    for rule in ScaleRule:
        values = fake_quantize(WEIGHT, rule, torch.float32)
        assert torch.equal(values, fake_quantize_reference(WEIGHT, rule, torch.float32))
        assert torch.equal(values, decode(encode(WEIGHT, rule)))


@pytest.mark.gpu
def test_kernels_are_for_bf16_and_two_rules() -> None:
    bf16 = WEIGHT.bfloat16().cuda()
    kernels = [rule for rule in ScaleRule if has_kernel(bf16, rule, ScaleFormat.E4M3)]
    assert set(kernels) == {ScaleRule.AMAX, ScaleRule.SEARCH}
    assert not has_kernel(bf16.float(), ScaleRule.AMAX, ScaleFormat.E4M3)
    assert not has_kernel(bf16, ScaleRule.AMAX, ScaleFormat.FLOAT16)
    assert not has_kernel(bf16, None, ScaleFormat.E4M3)


def test_columns_must_be_whole_blocks_and_nan_stays() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        fake_quantize(WEIGHT[:, :24], ScaleRule.AMAX, torch.float32)
    weight = WEIGHT.clone()
    weight[2, 5] = float("nan")
    assert fake_quantize(weight, ScaleRule.SEARCH, torch.float32).isnan()[2, 5]
