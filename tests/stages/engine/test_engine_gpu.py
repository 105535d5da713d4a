"""The engine's kernels against their formulas in plain PyTorch, and its captured step against an eager one
and the plain path.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stages.contract import OptimizerStateMode, Rounding
from stages.engine import ops
from stages.engine.attention import attention, attention_backward
from stages.engine.engine import Engine
from stages.engine.graph import Inputs
from stages.engine.head import Softmax, _add_rows, _give, _take
from stages.optim.adamw import AdamWSettings, make_optimizer
from stages.optim.clip import RunningClip
from stages.optim.fused_clip import FusedClip
from stages.qwen3.batches import Batch
from stages.train.trainer import trainable_names
from tests.stages.engine.test_engine import batch_of, plain_step, request_of, tiny_model

pytestmark = pytest.mark.gpu


def _close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-2) -> None:
    ours, expected = ours.detach().float().cpu(), expected.detach().float()
    assert torch.isfinite(ours).all()
    assert float((ours - expected).norm() / expected.norm().clamp(min=1e-9)) < tolerance


def _both(work: Callable[..., object], *tensors: object) -> None:
    """Runs `work` on the CPU in float32 and on the GPU in BF16 on the same BF16 values."""

    def moved(x: object, wide: bool) -> object:
        if isinstance(x, tuple):
            return tuple(moved(y, wide) for y in x)
        return x if not isinstance(x, torch.Tensor) else x.float() if wide else x.cuda()

    expected = work(*(moved(t, True) for t in tensors))
    ours = work(*(moved(t, False) for t in tensors))
    for a, b in zip(ours, expected, strict=True) if isinstance(ours, tuple) else [(ours, expected)]:  # type: ignore[arg-type]
        _close(a, b)


@pytest.mark.parametrize(("rows", "size"), [(1, 48), (7, 256), (700, 2560)])
def test_norms(rows: int, size: int) -> None:
    x, weight, grad, residual = (torch.randn(n, size).bfloat16() for n in (rows, 1, rows, rows))
    _both(lambda x, w: ops.rms_norm(x, w[0], 1e-6), x, weight)

    def backward(
        x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        weight_grad = torch.empty(size, device=x.device)
        return ops.rms_norm_backward(x, weight[0], 1e-6, grad, residual.clone(), weight_grad), weight_grad

    _both(backward, x, weight, grad, residual)


@pytest.mark.parametrize(
    ("counts", "dim", "rows", "length"), [((4, 2), 16, 3, 5), ((32, 8), 128, 8, 96), ((6, 3), 64, 2, 33)]
)
def test_heads(counts: tuple[int, int], dim: int, rows: int, length: int) -> None:
    q, k = counts
    qkv = torch.randn(rows * length, (q + 2 * k) * dim).bfloat16()
    weights = torch.randn(2, dim).bfloat16()
    angles = torch.rand(length, dim // 2) * 6
    angles = torch.cat((angles, angles), 1)
    table = (angles.cos().bfloat16(), angles.sin().bfloat16())
    _both(lambda x, w, t: ops.heads(x, w[0], w[1], t, length, dim, counts, 1e-6), qkv, weights, table)

    def backward(
        x: torch.Tensor, w: torch.Tensor, t: ops.Table, g: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        weight_grads = torch.empty(2, dim, device=x.device)
        return ops.heads_backward(x, w[0], w[1], t, length, dim, counts, 1e-6, g, weight_grads), weight_grads  # type: ignore[arg-type]

    for heads in (k, q):  # of key and value each, or one for every query head
        grads = tuple(torch.randn(rows * length, n, dim).bfloat16() for n in (q, heads, heads))
        _both(backward, qkv, weights, table, grads)


@pytest.mark.parametrize(
    ("counts", "dim", "rows", "length"),
    [
        ((4, 2), 16, 3, 5),
        ((32, 8), 128, 2, 96),
        ((6, 3), 64, 2, 128),
        ((8, 8), 32, 1, 3),
        ((32, 8), 128, 1, 200),
    ],
)
def test_attention(counts: tuple[int, int], dim: int, rows: int, length: int) -> None:
    q, k = counts
    n = rows * length
    parts = [torch.randn(n, heads, dim).bfloat16() for heads in (q, k, q + 2 * k)]
    grad = torch.randn(n, q * dim).bfloat16()

    def both(
        query: torch.Tensor, key: torch.Tensor, wide: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        kept = attention(query, key, wide[:, q + k :], length)
        g_query, g_key, g_value = attention_backward(kept, grad)
        return kept.rows(), g_query, *(g.view(n, k, -1, dim).float().sum(dim=2) for g in (g_key, g_value))

    _both(both, *parts, grad)


def test_swiglu() -> None:
    merged, grad = torch.randn(33, 2 * 9728).bfloat16(), torch.randn(33, 9728).bfloat16()
    _both(ops.swiglu, merged)
    _both(lambda m, g: ops.swiglu_backward(m.clone(), g), merged, grad)


def test_softmax_by_pieces_and_its_gradient() -> None:
    logits, targets = (torch.randn(50, 9000) * 5).bfloat16(), torch.randint(-1, 9000, (50,))

    def work(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        new = [torch.full((50,), v, device=logits.device) for v in (float("-inf"), 0.0, 0.0)]
        state = Softmax(logits, targets.long(), torch.tensor(0.25, device=logits.device), *new)
        pieces = [(first, logits[:, first : first + 4096].contiguous()) for first in range(0, 9000, 4096)]
        for first, piece in pieces:
            _take(piece, state, first)
        losses = (state.largest + state.total.log() - state.chosen)[targets >= 0]
        return losses, torch.cat([_give(piece, state, first).float() for first, piece in pieces], dim=1)

    _both(work, logits, targets)
    wide = logits.float().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, targets, ignore_index=-1, reduction="sum") * 0.25
    (grad,) = torch.autograd.grad(expected, wide)
    losses, ours = work(logits.cuda(), targets.cuda())
    _close(losses.sum() * 0.25, expected, 1e-5)
    _close(ours, grad)


def test_rows_of_the_embedding() -> None:
    ids, grad = torch.randint(0, 200, (333,)), torch.randn(333, 2560).bfloat16()
    ids[::3] = 77
    words, order = torch.sort(ids, stable=True)
    out = torch.randn(64, 2560).bfloat16()
    expected = out.float().index_add(
        0, ids[(ids >= 50) & (ids < 114)] - 50, grad[(ids >= 50) & (ids < 114)].float()
    )
    ours = out.cuda()
    sums = torch.full((1 + 333 * 3,), float("nan"), device="cuda")
    sums[0] = ours.float().square().sum()
    _add_rows(ours, grad.cuda(), words.cuda(), order.cuda(), 50, sums)
    _close(ours, expected, 4e-3)
    assert float(sums.sum()) == pytest.approx(float(expected.square().sum()), rel=1e-5)


@pytest.mark.parametrize("width", [21, 32])
def test_inputs(width: int) -> None:
    batch = batch_of(3, width=width)
    plain, ours = Inputs.empty(4, 32, torch.device("cpu")), Inputs.empty(4, 32, torch.device("cuda"))
    ours.ids += 5
    plain.fill(batch)
    ours.fill(Batch(batch.ids.cuda(), batch.where.cuda(), batch.targets.cuda(), batch.tokens))
    assert torch.equal(plain.ids, ours.ids.cpu()) and torch.equal(plain.targets, ours.targets.cpu())
    assert int((plain.targets >= 0).sum()) == len(batch.targets)


@pytest.mark.parametrize(
    ("tokens", "rows", "columns"),
    [(1, 64, 128), (96, 4096, 2560), (33, 2560, 9728), (256, 192, 384), (50, 80, 48)],
)
def test_the_gradient_of_a_weight(tokens: int, rows: int, columns: int) -> None:
    """Of a slice of a wider gradient, as that of merged layers is; with its norm where the tiles divide it."""
    grad, x = (torch.randn(tokens, n).bfloat16() for n in (rows + 24, columns))
    expected = grad[:, 8 : rows + 8].float().t() @ x.float()
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
    sums = ops.weight_grad(grad.cuda()[:, 8 : rows + 8], x.cuda(), out)
    _close(out, expected, 4e-3)
    assert (sums is None) == (rows == 80)
    if sums is not None:
        assert float(sums.sum()) == pytest.approx(float(expected.square().sum()), rel=1e-5)


def test_the_running_norm() -> None:
    names = ["a", "b", "c", "d", "e"]
    ours, plain = (
        FusedClip(names, 1.0, torch.device("cuda"), 70000),
        RunningClip(names, 1.0, torch.device("cpu")),
    )

    def same(a: torch.Tensor | None, b: torch.Tensor | None) -> None:
        assert a is not None and b is not None and float(a) == pytest.approx(float(b), rel=1e-5)

    for size in (70000, 5, 16384):
        for name in names[:3]:
            grad = torch.randn(size)
            same(ours.factor(name, grad.cuda()), plain.factor(name, grad))
        parts = torch.randn(3000).square()
        same(ours.factor("b", grad.cuda(), parts.cuda()), plain.factor("b", grad, parts))
        pair = torch.randn(3000)
        same(
            ours.vectors_factor({"d": 2900, "e": 100}, pair.cuda()),
            plain.vectors_factor({"d": 2900, "e": 100}, pair),
        )
    assert ours.norm() == pytest.approx(plain.norm(), rel=1e-5)


def _gpu_batch(seed: int, width: int = 21) -> Batch:
    b = batch_of(seed, width=width)
    return Batch(b.ids.cuda(), b.where.cuda(), b.targets.cuda(), b.tokens)


def _train(
    capture: bool, steps: int, tied: bool = True, **changes: object
) -> tuple[list[float], dict[str, torch.Tensor], list[str]]:
    model = tiny_model(tied, dtype=torch.bfloat16).cuda()
    model.compute_dtype = torch.bfloat16
    request = request_of(**changes)
    names = trainable_names(model, request.train_last_layers)
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.01, OptimizerStateMode.INT8, Rounding.STOCHASTIC, 1024, 5)
    optimizer = make_optimizer({n: p for n, p in model.named_parameters() if n in names}, settings)
    notes: list[str] = []
    engine = Engine(model, names, optimizer, request, notes.append, capture)
    losses = []
    for step in range(1, steps + 1):
        optimizer.begin_step(step, 1e-3 * step)
        losses.append(float(engine.step(_gpu_batch(step, (21, 40)[step % 2]))))
    return losses, {n: p.detach() for n, p in model.named_parameters()}, notes


@pytest.mark.parametrize(
    "changes",
    [{}, {"gradient_checkpointing": True}, {"tied": False}, {"train_last_layers": 1, "tied": False}],
)
def test_replay_is_the_eager_step_bit_for_bit(changes: dict[str, object]) -> None:
    eager, again, replayed = (
        _train(False, 8, **changes),
        _train(False, 8, **changes),
        _train(True, 8, **changes),
    )  # type: ignore[arg-type]
    assert replayed[2] == []
    assert eager[0] == again[0] == replayed[0]
    for name, value in eager[1].items():
        assert torch.equal(value, again[1][name]) and torch.equal(value, replayed[1][name]), name


@pytest.mark.parametrize("tied", [True, False])
def test_losses_are_the_plain_paths(tied: bool) -> None:
    losses, _, _ = _train(True, 8, tied)
    model = tiny_model(tied).cuda()
    request = request_of()
    names = trainable_names(model, 0)
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.01, OptimizerStateMode.FP32, Rounding.FP32, 1024, 5)
    optimizer = make_optimizer(dict(model.named_parameters()), settings)
    clip = RunningClip(names, request.clip_norm, torch.device("cuda"))
    expected = []
    for step in range(1, 9):
        optimizer.begin_step(step, 1e-3 * step)
        expected.append(
            plain_step(model, names, optimizer, clip, request, _gpu_batch(step, (21, 40)[step % 2]))
        )  # type: ignore[arg-type]
    assert losses == pytest.approx(expected, rel=0.02)


def test_float32_is_not_rounded_to_tensor_core_formats() -> None:
    grad, x = (torch.randn(96, n, device="cuda") for n in (64, 128))
    out = torch.empty(64, 128, device="cuda")
    assert ops.weight_grad(grad, x, out) is None
    _close(out, (grad.double().t() @ x.double()).float().cpu(), 1e-6)
    query, key, value = (torch.randn(96, n, 16, device="cuda") for n in (4, 2, 2))
    assert attention(query, key, value, 96).result.grad_fn is not None
