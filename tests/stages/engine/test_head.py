"""The head in chunks against the whole one, on a CPU. `test_head_kernels.py` has the GPU's side."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from stages.engine.head import (
    ChunkedHead,
    SoftmaxState,
    _accumulate_softmax,
    _add_embedding_grad,
    _logits_grad,
    chunk_names,
)
from stages.engine.streams import GradientBuffer, SideStream, WeightPrefetcher
from stages.qwen3.model import Qwen3
from tests.stages.engine.tiny import tiny_model

CPU = torch.device("cpu")


def test_chunks_have_names_unless_there_is_only_one() -> None:
    assert chunk_names("a", 130, 64) == ["a#0", "a#64", "a#128"]
    assert chunk_names("a", 64, 64) == ["a"]


@pytest.mark.parametrize("width", [1, 40, 300])
def test_softmax_in_chunks_is_cross_entropy(width: int) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(20, 300) * 5, torch.randint(-1, 300, (20,))
    values = [torch.full((20,), v) for v in (float("-inf"), 0.0, 0.0)]
    state = SoftmaxState(logits, targets, torch.tensor(0.25), *values)
    chunks = {first: logits[:, first : first + width] for first in range(0, 300, width)}
    for first, chunk in chunks.items():
        _accumulate_softmax(chunk, state, first)
    losses = (state.row_max + state.row_sum.log() - state.target_logit)[targets >= 0]
    leaf = logits.clone().requires_grad_()
    expected = F.cross_entropy(leaf, targets, ignore_index=-1, reduction="none")
    torch.testing.assert_close(losses, expected[targets >= 0].detach())
    (grad,) = torch.autograd.grad(expected.sum() * 0.25, leaf)
    ours = torch.cat([_logits_grad(chunk, state, first) for first, chunk in chunks.items()], dim=1)
    torch.testing.assert_close(ours, grad)


def test_rows_of_the_embedding_get_the_sum_of_their_positions() -> None:
    torch.manual_seed(0)
    ids, grad = torch.randint(0, 20, (50,)), torch.randn(50, 8)
    token_ids, order = torch.sort(ids, stable=True)
    out = torch.randn(6, 8)
    whole = torch.zeros(20, 8).index_add_(0, ids, grad)
    expected = out + whole[10:16]
    _add_embedding_grad(out, grad, token_ids, order, 10)
    torch.testing.assert_close(out, expected)


def _updates(model: Qwen3, rows: int, buffer: int) -> tuple[float, torch.Tensor, dict[str, torch.Tensor]]:
    """Loss, gradient of the hidden states, and the gradients that would be applied, for fixed inputs."""
    grads: dict[str, torch.Tensor] = {}

    def update(name: str, master: torch.Tensor, grad: torch.Tensor, first: int, sums: object) -> None:
        grads.setdefault(name, torch.zeros_like(master)).view(-1)[first : first + grad.numel()] = (
            grad.flatten()
        )

    trained = {name for name, _ in model.named_parameters()}
    largest = model.config.vocab_size * model.config.hidden_size
    weights = WeightPrefetcher(largest, torch.float32, CPU)
    gradients = GradientBuffer(largest, torch.float32, CPU, SideStream(CPU))
    head = ChunkedHead(model, trained, weights, gradients, update, rows, buffer)
    torch.manual_seed(1)
    ids, targets = torch.randint(0, 300, (30,)), torch.randint(-1, 300, (30,))
    hidden, grad = torch.randn(30, 48), torch.randn(30, 48)
    with torch.no_grad():
        loss, state = head.loss(hidden, targets, torch.tensor(1 / 30))
        hidden_grad = head.backward(state)
        head.update_embedding(ids, grad, state)
        assert torch.equal(head.embed(ids), model.model.embed_tokens.weight[ids])
    return float(loss), hidden_grad, grads


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_the_same_in_any_chunks(tied: bool) -> None:
    whole = _updates(tiny_model(tied), 300, 1 << 20)
    assert set(whole[2]) == {"model.embed_tokens.weight"} | (set() if tied else {"lm_head.weight"})
    for rows, buffer in ((300, 0), (64, 0), (64, 1 << 20)):
        loss, hidden_grad, grads = _updates(tiny_model(tied), rows, buffer)
        assert loss == pytest.approx(whole[0], rel=1e-6)
        torch.testing.assert_close(hidden_grad, whole[1])
        for name, grad in grads.items():
            torch.testing.assert_close(grad, whole[2][name])
