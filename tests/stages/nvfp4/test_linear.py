"""The straight-through linear layer."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import decode, encode
from stages.nvfp4.linear import Linear


def _layer(rule: ScaleRule | None) -> Linear:
    layer = Linear(64, 32)
    layer.weight = torch.nn.Parameter(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
    layer.rule = rule
    return layer


def test_gradients_are_those_of_a_plain_layer_with_the_rounded_weight() -> None:
    layer, x = _layer(ScaleRule.SEARCH), torch.randn(5, 64, requires_grad=True)
    plain = decode(encode(layer.weight, ScaleRule.SEARCH)).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    upstream = torch.randn(5, 32)
    layer(x).backward(upstream)
    F.linear(twin, plain).backward(upstream)
    assert torch.equal(layer.weight.grad, plain.grad) and torch.equal(x.grad, twin.grad)


def test_without_a_rule_it_is_the_plain_layer() -> None:
    layer, x = _layer(None), torch.randn(5, 64)
    assert torch.equal(layer(x), F.linear(x, layer.weight))


def test_the_kept_weight_follows_a_change_of_the_master() -> None:
    layer, x = _layer(ScaleRule.AMAX), torch.randn(5, 64)
    with torch.no_grad():
        before = layer(x)
        assert torch.equal(before, layer(x))
        layer.weight.mul_(2)
        assert torch.equal(layer(x), 2 * before)
