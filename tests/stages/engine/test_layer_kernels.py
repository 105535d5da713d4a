"""The kernels of a layer against the plain formulas, and the arguments of their launches."""

from __future__ import annotations

import pytest
import torch

from stages.engine import ops
from stages.engine.attention import attention, attention_backward
from tests.stages.engine.compare import close, on_both
from tests.stages.kernel_launches import check_launches


def test_every_launch_binds_every_parameter_once() -> None:
    sizes = {"rotary": 2, "(g.contiguous() for g in grads)": 3, "partial": 2, "out": 3}
    launchers = ["stages/engine/ops.py", "stages/engine/attention.py"]
    assert check_launches("stages/engine/layer_kernels.py", launchers, sizes) == 8


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "size"), [(1, 48), (7, 256), (700, 2560)])
def test_norms(rows: int, size: int) -> None:
    x, weight, grad, residual = (torch.randn(n, size).bfloat16() for n in (rows, 1, rows, rows))
    on_both(lambda x, w: ops.rms_norm(x, w[0], 1e-6), x, weight)

    def backward(
        x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        weight_grad = torch.empty(size, device=x.device)
        return ops.rms_norm_backward(x, weight[0], 1e-6, grad, residual.clone(), weight_grad), weight_grad

    on_both(backward, x, weight, grad, residual)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("head_counts", "dim", "rows", "length"), [((4, 2), 16, 3, 5), ((32, 8), 128, 8, 96), ((6, 3), 64, 2, 33)]
)
def test_heads(head_counts: tuple[int, int], dim: int, rows: int, length: int) -> None:
    q, k = head_counts
    qkv = torch.randn(rows * length, (q + 2 * k) * dim).bfloat16()
    weights = torch.randn(2, dim).bfloat16()
    angles = torch.rand(length, dim // 2) * 6
    angles = torch.cat((angles, angles), 1)
    table = (angles.cos().bfloat16(), angles.sin().bfloat16())
    on_both(
        lambda x, w, t: ops.qk_norm_rope(x, w[0], w[1], t, length, dim, head_counts, 1e-6),
        qkv,
        weights,
        table,
    )

    def backward(
        x: torch.Tensor, w: torch.Tensor, t: ops.RotaryTable, g: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        weight_grads = torch.empty(2, dim, device=x.device)
        return ops.qk_norm_rope_backward(
            x, w[0], w[1], t, length, dim, head_counts, 1e-6, g, weight_grads
        ), weight_grads  # type: ignore[arg-type]

    for heads in (k, q):  # of key and value each, or one for every query head
        grads = tuple(torch.randn(rows * length, n, dim).bfloat16() for n in (q, heads, heads))
        on_both(backward, qkv, weights, table, grads)


@pytest.mark.gpu
def test_swiglu() -> None:
    gate_up, grad = torch.randn(33, 2 * 9728).bfloat16(), torch.randn(33, 9728).bfloat16()
    on_both(ops.swiglu, gate_up)
    on_both(lambda m, g: ops.swiglu_backward(m.clone(), g), gate_up, grad)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tokens", "rows", "columns"),
    [(1, 64, 128), (96, 4096, 2560), (33, 2560, 9728), (256, 192, 384), (50, 80, 48)],
)
def test_the_gradient_of_a_weight(tokens: int, rows: int, columns: int) -> None:
    """From a slice of a wider gradient, as in a fused projection; with its norm where the tiles divide it."""
    grad, x = (torch.randn(tokens, n).bfloat16() for n in (rows + 24, columns))
    expected = grad[:, 8 : rows + 8].float().t() @ x.float()
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
    sums = ops.weight_grad(grad.cuda()[:, 8 : rows + 8], x.cuda(), out)
    close(out, expected, 4e-3)
    assert (sums is None) == (rows == 80)
    if sums is not None:
        assert float(sums.sum()) == pytest.approx(float(expected.square().sum()), rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("head_counts", "dim", "rows", "length"),
    [
        ((4, 2), 16, 3, 5),
        ((32, 8), 128, 2, 96),
        ((6, 3), 64, 2, 128),
        ((8, 8), 32, 1, 3),
        ((32, 8), 128, 1, 200),
    ],
)
def test_attention(head_counts: tuple[int, int], dim: int, rows: int, length: int) -> None:
    q, k = head_counts
    n = rows * length
    parts = [torch.randn(n, heads, dim).bfloat16() for heads in (q, k, q + 2 * k)]
    grad = torch.randn(n, q * dim).bfloat16()

    def forward_and_backward(
        query: torch.Tensor, key: torch.Tensor, wide: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        kept = attention(query, key, wide[:, q + k :], length)
        g_query, g_key, g_value = attention_backward(kept, grad)
        return kept.rows(), g_query, *(g.view(n, k, -1, dim).float().sum(dim=2) for g in (g_key, g_value))

    on_both(forward_and_backward, *parts, grad)


@pytest.mark.gpu
def test_float32_is_not_rounded_to_tensor_core_formats() -> None:
    grad, x = (torch.randn(96, n, device="cuda") for n in (64, 128))
    out = torch.empty(64, 128, device="cuda")
    assert ops.weight_grad(grad, x, out) is None
    close(out, (grad.double().t() @ x.double()).float().cpu(), 1e-6)
    query, key, value = (torch.randn(96, n, 16, device="cuda") for n in (4, 2, 2))
    assert attention(query, key, value, 96).result.grad_fn is not None
