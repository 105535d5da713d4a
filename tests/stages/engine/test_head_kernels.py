"""The kernels of the head against plain PyTorch, and the arguments of their launches."""

from __future__ import annotations

import pytest
import torch

from stages.engine.graph import StepInputs
from stages.engine.head import SoftmaxState, _accumulate_softmax, _add_embedding_grad, _logits_grad
from stages.qwen3.batches import Batch
from tests.stages.engine.compare import close, on_both
from tests.stages.engine.tiny import batch_of
from tests.stages.kernel_launches import check_launches


def test_every_launch_binds_every_parameter_once() -> None:
    launchers = ["stages/engine/head.py", "stages/engine/graph.py"]
    assert check_launches("stages/engine/head_kernels.py", launchers, {}) == 4


@pytest.mark.gpu
def test_softmax_in_chunks_and_its_gradient() -> None:
    logits, targets = (torch.randn(50, 9000) * 5).bfloat16(), torch.randint(-1, 9000, (50,))

    def work(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        new = [torch.full((50,), v, device=logits.device) for v in (float("-inf"), 0.0, 0.0)]
        state = SoftmaxState(logits, targets.long(), torch.tensor(0.25, device=logits.device), *new)
        chunks = [(first, logits[:, first : first + 4096].contiguous()) for first in range(0, 9000, 4096)]
        for first, chunk in chunks:
            _accumulate_softmax(chunk, state, first)
        losses = (state.row_max + state.row_sum.log() - state.target_logit)[targets >= 0]
        return losses, torch.cat(
            [_logits_grad(chunk, state, first).float() for first, chunk in chunks], dim=1
        )

    on_both(work, logits, targets)
    wide = logits.float().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, targets, ignore_index=-1, reduction="sum") * 0.25
    (grad,) = torch.autograd.grad(expected, wide)
    losses, ours = work(logits.cuda(), targets.cuda())
    close(losses.sum() * 0.25, expected, 1e-5)
    close(ours, grad)


@pytest.mark.gpu
def test_gradient_of_the_embedding() -> None:
    ids, grad = torch.randint(0, 200, (333,)), torch.randn(333, 2560).bfloat16()
    ids[::3] = 77
    token_ids, order = torch.sort(ids, stable=True)
    out = torch.randn(64, 2560).bfloat16()
    expected = out.float().index_add(
        0, ids[(ids >= 50) & (ids < 114)] - 50, grad[(ids >= 50) & (ids < 114)].float()
    )
    ours = out.cuda()
    square_sums = torch.full((1 + 333 * 3,), float("nan"), device="cuda")
    square_sums[0] = ours.float().square().sum()
    _add_embedding_grad(ours, grad.cuda(), token_ids.cuda(), order.cuda(), 50, square_sums)
    close(ours, expected, 4e-3)
    assert float(square_sums.sum()) == pytest.approx(float(expected.square().sum()), rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [21, 32])
def test_inputs_of_a_step(width: int) -> None:
    batch = batch_of(3, width=width)
    plain, ours = StepInputs.empty(4, 32, torch.device("cpu")), StepInputs.empty(4, 32, torch.device("cuda"))
    ours.ids += 5
    plain.fill(batch)
    ours.fill(Batch(batch.ids.cuda(), batch.where.cuda(), batch.targets.cuda(), batch.tokens))
    assert torch.equal(plain.ids, ours.ids.cpu()) and torch.equal(plain.targets, ours.targets.cpu())
    assert int((plain.targets >= 0).sum()) == len(batch.targets)
