"""The engine's step against the plain path with autograd, on a CPU; captured and eager, on a GPU."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import LossKind, OptimizerStateMode, Rounding
from stages.engine.engine import Engine, largest_weight, plain_path_reason
from stages.engine.head import chunk_names
from stages.optim.adamw import AdamW, AdamWSettings
from stages.optim.clip import RunningClip
from stages.optim.factory import make_optimizer
from stages.optim.schedule import group_lr_factor
from stages.qwen3.batches import Batch
from stages.train.trainer import trainable_names
from tests.stages.engine.tiny import batch_of, plain_step, request_of, settings, tiny_model

CASES = {
    "tied": (True, {}),
    "own head": (False, {}),
    "checkpointing": (True, {"gradient_checkpointing": True}),
    "clipped": (False, {"clip_norm": 0.05}),
    "groups": (False, {"lr_groups": {"lm_head": 3.0, "model.layers.1": 0.0}}),
    "last layer, tied": (True, {"train_last_layers": 1}),
    "last layer, own head": (False, {"train_last_layers": 1, "gradient_checkpointing": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_the_plain_paths(case: str) -> None:
    tied, changes = CASES[case]
    request = request_of(**({"clip_norm": 0.0} | changes))
    # The running norm depends on the order of gradients, which is not quite autograd's.
    close = 2e-3 if request.clip_norm else 1e-5
    # A clipped vocabulary in one chunk: in several, the running norm sees the chunks one after the other.
    vocab = 64 if request.clip_norm else 300
    models = [tiny_model(tied, vocab=vocab), tiny_model(tied, vocab=vocab)]
    names = trainable_names(models[0], request.train_last_layers)
    optimizers = [
        AdamW({n: p for n, p in m.named_parameters() if n in names}, settings(request)) for m in models
    ]
    for model in models:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
    engine = Engine(models[1], names, optimizers[1], request, pytest.fail)
    clip = RunningClip(names, request.clip_norm, torch.device("cpu"))
    before = {n: p.detach().clone() for n, p in models[0].named_parameters()}
    for step in range(1, 4):
        for optimizer in optimizers:
            optimizer.begin_step(step, 1e-3)
        batch = batch_of(step, vocab=vocab)
        expected = plain_step(models[0], names, optimizers[0], clip, request, batch)
        assert float(engine.step(batch)) == pytest.approx(expected, rel=close)
        assert engine.clip.norm() == pytest.approx(clip.norm(), rel=10 * close)
    ours = dict(models[1].named_parameters())
    for name, parameter in models[0].named_parameters():
        frozen = name not in names or group_lr_factor(name, request.lr_groups) == 0
        assert torch.equal(ours[name], before[name]) == frozen, name
        moved, off = (parameter - before[name]).norm(), (ours[name] - parameter).norm()
        assert float(off.detach()) <= (0.1 if request.clip_norm else 0.01) * float(moved.detach()), name


def test_chunks_of_the_vocabulary_change_nothing() -> None:
    results = []
    for tied in (True, False):
        for rows, buffer in ((128, 0), (64, 0), (64, 1 << 20)):
            model, request = tiny_model(tied), request_of(clip_norm=0.0)
            names = trainable_names(model, 0)
            optimizer = AdamW(dict(model.named_parameters()), settings(request))
            engine = Engine(model, names, optimizer, request, pytest.fail)
            engine._chunk_rows = engine._head._chunk_rows = rows
            engine._head._buffer = buffer
            chunked = ("model.embed_tokens.weight", "lm_head.weight")
            clipped = [c for n in names for c in (chunk_names(n, 300, rows) if n in chunked else [n])]
            engine.clip = RunningClip(clipped, 0.0, torch.device("cpu"))
            optimizer.begin_step(1, 1e-3)
            losses = float(engine.step(batch_of(1)))
            results.append((losses, dict(model.named_parameters())))
    for whole, *others in (results[:3], results[3:]):
        for cut in others:
            assert whole[0] == pytest.approx(cut[0], rel=1e-6)
            for name in whole[1]:
                torch.testing.assert_close(whole[1][name], cut[1][name], rtol=1e-3, atol=2e-5)


def test_the_largest_weight_is_that_of_the_fused_projections() -> None:
    model = tiny_model(True)
    engine = Engine(
        model, [], AdamW(dict(model.named_parameters()), settings(request_of())), request_of(), pytest.fail
    )
    sizes = [
        p._quantized.master.numel() for y in engine._layers for p in (y._qkv, y._out, y._gate_up, y._down)
    ]
    assert largest_weight(model.config) == max(sizes)


def test_what_the_engine_leaves_to_the_plain_path_has_a_reason() -> None:
    assert "cpu" in plain_path_reason(request_of(), torch.device("cpu"))
    gpu = torch.device("cuda")
    assert plain_path_reason(request_of(), gpu) == ""
    assert "grad_accum 2" in plain_path_reason(request_of(grad_accum=2), gpu)
    assert "loss scalar" in plain_path_reason(request_of(loss=LossKind.SCALAR), gpu)
    assert "fp32" in plain_path_reason(request_of(optimizer_state_mode=OptimizerStateMode.FP32), gpu)


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
    hyper = AdamWSettings(0.9, 0.999, 1e-8, 0.01, OptimizerStateMode.INT8, Rounding.STOCHASTIC, 1024, 5)
    optimizer = make_optimizer({n: p for n, p in model.named_parameters() if n in names}, hyper)
    notes: list[str] = []
    engine = Engine(model, names, optimizer, request, notes.append, capture)
    losses = []
    for step in range(1, steps + 1):
        optimizer.begin_step(step, 1e-3 * step)
        losses.append(float(engine.step(_gpu_batch(step, (21, 40)[step % 2]))))
    return losses, {n: p.detach() for n, p in model.named_parameters()}, notes


@pytest.mark.gpu
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


@pytest.mark.gpu
@pytest.mark.parametrize("tied", [True, False])
def test_losses_are_the_plain_paths(tied: bool) -> None:
    losses, _, _ = _train(True, 8, tied)
    model = tiny_model(tied).cuda()
    request = request_of()
    names = trainable_names(model, 0)
    hyper = AdamWSettings(0.9, 0.999, 1e-8, 0.01, OptimizerStateMode.FP32, Rounding.FP32, 1024, 5)
    optimizer = make_optimizer(dict(model.named_parameters()), hyper)
    clip = RunningClip(names, request.clip_norm, torch.device("cuda"))
    expected = []
    for step in range(1, 9):
        optimizer.begin_step(step, 1e-3 * step)
        expected.append(
            plain_step(model, names, optimizer, clip, request, _gpu_batch(step, (21, 40)[step % 2]))
        )  # type: ignore[arg-type]
    assert losses == pytest.approx(expected, rel=0.02)
