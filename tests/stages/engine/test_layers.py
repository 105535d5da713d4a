"""One layer, forward and backward, against autograd through the model's own layer, on a CPU."""

from __future__ import annotations

import pytest
import torch

from stages.engine.engine import largest_weight
from stages.engine.layers import LayerEngine
from stages.engine.norm_weights import NormWeights
from stages.engine.streams import GradientBuffer, SideStream, WeightPrefetcher
from stages.qwen3.model import Layer, rotary_table
from tests.stages.engine.tiny import tiny_model

CPU = torch.device("cpu")
PREFIX, ROWS, LENGTH = "model.layers.1.", 2, 9


@pytest.mark.parametrize("again", [False, True], ids=["saved", "checkpointing"])
def test_a_layer_and_its_gradients_are_autograds(again: bool) -> None:
    torch.manual_seed(2)
    model, x = tiny_model(True), torch.randn(ROWS, LENGTH, 48)
    grad, config = torch.randn(ROWS, LENGTH, 48), model.config
    cos, sin = rotary_table(config, torch.arange(LENGTH)[None], torch.float32)
    layer = model.model.layers[1]
    assert isinstance(layer, Layer)
    leaf = x.clone().requires_grad_()
    expected = layer(leaf, (cos, sin), None, None)
    expected.backward(grad)
    assert leaf.grad is not None
    parameters = {PREFIX + name: p for name, p in layer.named_parameters()}
    weights = WeightPrefetcher(largest_weight(config), torch.float32, CPU)
    gradients = GradientBuffer(largest_weight(config), torch.float32, CPU, SideStream(CPU))
    norms = NormWeights(
        {n: p.data for n, p in parameters.items() if p.ndim == 1}, dict.fromkeys(parameters, 1.0)
    )
    grads: dict[str, torch.Tensor] = {}

    def update(name: str, master: torch.Tensor, grad: torch.Tensor, first: int, sums: object) -> None:
        grads[name] = grad.clone()

    rotary = (cos[0, 0], sin[0, 0])
    with torch.no_grad():
        engine = LayerEngine(layer, PREFIX, config, set(parameters), weights, gradients, update, norms)
        out, saved = engine.forward(x.flatten(0, 1), rotary)
        if again:
            saved = engine.activations(x.flatten(0, 1), rotary)
        x_grad = engine.backward(grad.flatten(0, 1), saved, rotary)
    torch.testing.assert_close(out.view_as(x), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x_grad.view_as(x), leaf.grad, rtol=1e-3, atol=1e-4)
    grads |= {name: norms.grad(name) for name in norms.masters}
    assert set(grads) == set(parameters)
    for name, parameter in parameters.items():
        torch.testing.assert_close(grads[name], parameter.grad, rtol=1e-3, atol=1e-4, msg=name)
