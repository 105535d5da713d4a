"""The plain formulas against autograd, on a CPU. `test_layer_kernels.py` compares the kernels with them."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stages.engine import ops
from stages.memory.limits import MAX_PARTIAL_SUMS
from stages.qwen3.model import rotate


def test_powers_of_two() -> None:
    assert [ops.next_power_of_two(n) for n in (1, 2, 3, 48, 64, 65)] == [1, 2, 4, 64, 64, 128]
    assert ops.MAX_PARTIAL_SUMS == MAX_PARTIAL_SUMS


def test_gradient_of_the_norm() -> None:
    torch.manual_seed(0)
    x, grad, residual = (torch.randn(7, 48) for _ in range(3))
    weight = torch.randn(48)
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    expected = torch.autograd.grad(F.rms_norm(leaves[0], (48,), leaves[1], 1e-6), leaves, grad)
    weight_grad = torch.empty(48)
    out = ops.rms_norm_backward(x, weight, 1e-6, grad, residual, weight_grad)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), F.rms_norm(x, (48,), weight, 1e-6))
    torch.testing.assert_close(out, residual + expected[0])
    torch.testing.assert_close(weight_grad, expected[1])


def test_gradient_of_the_head_norms_and_positions() -> None:
    torch.manual_seed(0)
    (q, k), dim, length = (4, 2), 16, 5
    qkv, weights = torch.randn(3 * length, (q + 2 * k) * dim), torch.randn(2, dim)
    angles = torch.rand(length, dim // 2).repeat(1, 2) * 6
    rotary = (angles.cos(), angles.sin())
    leaves = [t.clone().requires_grad_() for t in (qkv, *weights)]
    heads = leaves[0].view(3, length, q + 2 * k, dim)
    expanded = (rotary[0][:, None], rotary[1][:, None])
    expected = [
        rotate(F.rms_norm(part, (dim,), weight, 1e-6), expanded).flatten(0, 1)
        for part, weight in ((heads[:, :, :q], leaves[1]), (heads[:, :, q : q + k], leaves[2]))
    ]
    ours = ops.qk_norm_rope(qkv, *weights, rotary, length, dim, (q, k), 1e-6)
    torch.testing.assert_close(list(ours), [t.detach() for t in expected])
    value = heads[:, :, q + k :].flatten(0, 1)
    per_query = [torch.randn(3 * length, q, dim) for _ in range(3)]
    summed = [g.view(-1, k, q // k, dim).sum(dim=2) for g in per_query[1:]]
    grads = torch.autograd.grad((*expected, value), leaves, (per_query[0], *summed))
    for given in ((per_query[0], *summed), tuple(per_query)):
        weight_grads = torch.empty(2, dim)
        found = ops.qk_norm_rope_backward(
            qkv, *weights, rotary, length, dim, (q, k), 1e-6, given, weight_grads
        )
        torch.testing.assert_close(found, grads[0])
        torch.testing.assert_close(weight_grads, torch.stack(grads[1:]))


def test_gradient_of_swiglu() -> None:
    torch.manual_seed(0)
    gate_up, grad = torch.randn(5, 2 * 12), torch.randn(5, 12)
    leaf = gate_up.clone().requires_grad_()
    expected = F.silu(leaf[:, :12]) * leaf[:, 12:]
    out, found = ops.swiglu_backward(gate_up.clone(), grad)
    torch.testing.assert_close(out, expected.detach())
    torch.testing.assert_close(found, torch.autograd.grad(expected, leaf, grad)[0])


def test_gradient_of_a_weight() -> None:
    grad, x, out = torch.randn(7, 64), torch.randn(7, 128), torch.empty(64, 128)
    assert ops.weight_grad(grad, x, out) is None
    torch.testing.assert_close(out, grad.t() @ x)
