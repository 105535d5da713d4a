"""Rounded weights and fused projections, on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from stages.contract.recipe import ScaleRule
from stages.engine.streams import GradientBuffer, SideStream, WeightPrefetcher
from stages.engine.weights import FusedProjection, QuantizedWeight
from stages.nvfp4.codec import ScaleFormat
from stages.nvfp4.fake_quantize import fake_quantize
from stages.nvfp4.linear import Linear

CPU = torch.device("cpu")


@pytest.mark.parametrize("rule", [None, *ScaleRule])
def test_the_effective_weight_follows_the_master(rule: ScaleRule | None) -> None:
    master = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    weight = QuantizedWeight(master, rule, ScaleFormat.E4M3)
    for _ in range(2):
        expected = master if rule is None else fake_quantize(master, rule, torch.float32)
        out, rows = torch.empty(6, 32), torch.empty(2, 32)
        weight.write(out)
        weight.write(rows, first=3)
        assert torch.equal(out, expected) and torch.equal(rows, expected[3:5])
        master.mul_(1.37)
        weight.invalidate_scales()


@pytest.mark.gpu
def test_scales_are_searched_again_after_an_update_only() -> None:
    master = torch.randn(64, 128, device="cuda").bfloat16()
    weight, out = QuantizedWeight(master, ScaleRule.SEARCH, ScaleFormat.E4M3), torch.empty_like(master)
    weight.write(out)
    expected = fake_quantize(master, ScaleRule.SEARCH, torch.bfloat16)
    assert torch.equal(out, expected)
    weight.write(out)
    assert torch.equal(out, expected), "the stored scales give the same values"
    master.mul_(3.0)
    weight.invalidate_scales()
    weight.write(out)
    assert torch.equal(out, fake_quantize(master, ScaleRule.SEARCH, torch.bfloat16))


def test_layers_multiplied_as_one_are_each_layer_and_share_their_masters() -> None:
    torch.manual_seed(0)
    linears = {name: Linear(32, size) for name, size in (("q", 16), ("k", 8), ("v", 8))}
    for linear in linears.values():
        linear.weight.data.normal_()
        linear.rule = ScaleRule.AMAX
    x, grad = torch.randn(5, 32), torch.randn(5, 32)
    expected = torch.cat([linear(x).detach() for linear in linears.values()], dim=1)
    rounded = torch.cat([linear.effective_weight(torch.float32).detach() for linear in linears.values()])
    updated: dict[str, torch.Tensor] = {}

    def update(name: str, master: torch.Tensor, grad: torch.Tensor, first: int, sums: object) -> None:
        assert master.data_ptr() == linears[name].weight.data_ptr()
        updated[name] = grad.clone()

    weights = WeightPrefetcher(32 * 32, torch.float32, CPU)
    gradients = GradientBuffer(32 * 32, torch.float32, CPU, SideStream(CPU))
    fused = FusedProjection(linears, {"q", "v", "another layer's"}, weights, gradients, update)
    torch.testing.assert_close(fused.forward(x), expected)
    torch.testing.assert_close(fused.backward(grad, x), F.linear(grad, rounded.t()))
    assert set(updated) == {"q", "v"}
    torch.testing.assert_close(updated["q"], grad[:, :16].t() @ x)
    torch.testing.assert_close(updated["v"], grad[:, 24:].t() @ x)
