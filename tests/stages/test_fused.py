"""The Triton kernels against the plain PyTorch path, on a GPU."""

from __future__ import annotations

import pytest
import torch

from stages.contract import OptimizerStateMode, Rounding, ScaleRule
from stages.nvfp4.codec import fake_quantize
from stages.optim.adamw import AdamW, AdamWSettings, make_optimizer

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("std", [1e-4, 0.005, 0.01, 0.02, 0.05, 1.0, 300.0])
@pytest.mark.parametrize("rule", [ScaleRule.AMAX, ScaleRule.SEARCH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_the_references_bit_for_bit(std: float, rule: ScaleRule, dtype: torch.dtype) -> None:
    weight = (torch.randn(512, 256, generator=torch.Generator().manual_seed(1)) * std).to(dtype)
    weight[0, :16] = 0
    on_gpu = fake_quantize(weight.cuda(), rule, torch.float32).cpu()
    assert torch.equal(on_gpu.view(torch.int32), fake_quantize(weight, rule, torch.float32).view(torch.int32))


@pytest.mark.parametrize("shape", [(40, 48), (64,), (1000, 256), (3000,)])
@pytest.mark.parametrize("rounding", list(Rounding))
def test_the_update_is_the_references(shape: tuple[int, ...], rounding: Rounding) -> None:
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.1, OptimizerStateMode.INT8, rounding, 1024, 7)
    dtype = torch.float32 if rounding is Rounding.FP32 else torch.bfloat16
    start = (torch.randn(*shape) * 0.02).to(dtype)
    plain, fused = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.cuda())
    reference, optimizer = AdamW({"a": plain}, settings), make_optimizer({"a": fused}, settings)
    assert type(optimizer).__name__ == "FusedAdamW"
    for step in range(1, 6):
        grad = (torch.randn(*shape) * 10 ** (torch.rand(*shape) * 4 - 2)).bfloat16()
        clip = torch.tensor(0.5)
        for one, master, g, c in ((reference, plain, grad, clip), (optimizer, fused, grad.cuda(), clip.cuda())):
            one.begin_step(step, 1e-3)
            one.update("a", master.data, g, 2.0, c)
        # Sums may be fused differently on the device: a bit of rounding, which may tip one stochastic rounding in thousands.
        assert (plain != fused.cpu()).float().mean() < (0.9 if rounding is Rounding.FP32 else 0.01)
        torch.testing.assert_close(plain.float(), fused.cpu().float(), rtol=0.01, atol=1e-6)
        assert optimizer.take_update_ratio() == pytest.approx(reference.take_update_ratio(), rel=1e-3)
