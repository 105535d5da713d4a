"""The engine's hand-written step against the plain path, which autograd differentiates: in float32 on a CPU."""

from __future__ import annotations

import pytest
import torch

from stages.contract import DataSource, OptimizerStateMode, Rounding, ScaleRule, TrainRequest
from stages.engine.engine import Engine, why_not
from stages.engine.head import piece_names, piece_rows
from stages.optim.adamw import AdamW, AdamWSettings
from stages.optim.clip import RunningClip
from stages.optim.schedule import group_lr_factor
from stages.qwen3.batches import Batch
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Qwen3
from stages.train.trainer import trainable_names
from tests.recipes import PLAIN


def tiny_model(tied: bool, *, seed: int = 0, vocab: int = 300, dtype: torch.dtype = torch.float32) -> Qwen3:
    """Two layers with grouped queries and random weights; norms differ from 1 so that their gradients count."""
    torch.manual_seed(seed)
    config = Qwen3Config(vocab, 48, 80, 3, 4, 2, 16, 1e4, 1e-6, 256, tied, 2, 1)
    model = Qwen3(config, tied)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.1)
        parameter.data = parameter.data.to(dtype)
    model.use_rule(ScaleRule.SEARCH)
    return model


def request_of(**changes: object) -> TrainRequest:
    """A request whose files are never read."""
    values: dict[str, object] = {
        "data": [DataSource("x")],
        "steps": 3,
        "lr": 1e-2,
        "batch_size": 4,
        "seq_len": 32,
    }
    names = ("model_dir", "input_weight", "output_weight", "events", "result")
    return TrainRequest(**{name: name for name in names}, **(PLAIN | values | changes))  # type: ignore[arg-type]


def batch_of(seed: int, rows: int = 4, width: int = 21, vocab: int = 300) -> Batch:
    """Random tokens, many of them alike; about half of the positions have targets."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (rows, width), generator=g)
    ids[:, ::3] = 7
    where = torch.randperm(rows * width, generator=g)[: rows * width // 2].sort().values
    return Batch(ids, where, torch.randint(0, vocab, where.shape, generator=g), rows * width)


def plain_step(
    model: Qwen3, names: list[str], optimizer: AdamW, clip: RunningClip, request: TrainRequest, batch: Batch
) -> float:
    """One step as `stages.train.trainer` does it, the updates after backward, in its order; vectors last, as
    in the engine.
    """
    grads: list[tuple[str, torch.Tensor]] = []
    parameters = dict(model.named_parameters())
    handles = [
        parameters[n].register_post_accumulate_grad_hook(lambda p, n=n: grads.append((n, p.grad.clone())))  # type: ignore[misc,union-attr]
        for n in names
    ]
    logits = model.head(model.hidden(batch.ids).flatten(0, 1)[batch.where]).float()
    loss = torch.nn.functional.cross_entropy(logits, batch.targets)
    loss.backward()
    for name, grad in grads:
        if grad.ndim > 1:
            optimizer.update(
                name,
                parameters[name].data,
                grad,
                group_lr_factor(name, request.lr_groups),
                clip.factor(name, grad),
            )
    vectors = [(name, grad) for name, grad in grads if grad.ndim == 1]
    if vectors:
        factor = clip.vectors_factor(
            {name: grad.numel() for name, grad in vectors}, torch.cat([grad for _, grad in vectors])
        )
        for name, grad in vectors:
            optimizer.update(
                name, parameters[name].data, grad, group_lr_factor(name, request.lr_groups), factor
            )
    for handle in handles:
        handle.remove()
    model.zero_grad(set_to_none=True)
    return float(loss.detach())


def settings(request: TrainRequest) -> AdamWSettings:
    """Those of a request, with float32 states: an 8-bit code may tip on the last bit of a sum."""
    return AdamWSettings(0.9, 0.999, 1e-8, 0.1, OptimizerStateMode.FP32, Rounding.FP32, 1024, request.seed)


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
    # The running norm depends on the order in which gradients come, which is not quite autograd's.
    close = 2e-3 if request.clip_norm else 1e-5
    # A clipped vocabulary in one piece: in several, the running norm sees the pieces one after the other.
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


def test_pieces_of_the_vocabulary_change_nothing() -> None:
    results = []
    for tied in (True, False):
        for piece, kept in ((128, 0), (64, 0), (64, 1 << 20)):
            model, request = tiny_model(tied), request_of(clip_norm=0.0)
            names = trainable_names(model, 0)
            optimizer = AdamW(dict(model.named_parameters()), settings(request))
            engine = Engine(model, names, optimizer, request, pytest.fail)
            engine._piece = engine._vocabulary._rows = piece
            engine._vocabulary._kept = kept
            cut = ("model.embed_tokens.weight", "lm_head.weight")
            clipped = [p for n in names for p in (piece_names(n, 300, piece) if n in cut else [n])]
            engine.clip = RunningClip(clipped, 0.0, torch.device("cpu"))
            optimizer.begin_step(1, 1e-3)
            losses = float(engine.step(batch_of(1)))
            results.append((losses, dict(model.named_parameters())))
    for whole, *others in (results[:3], results[3:]):
        for cut in others:
            assert whole[0] == pytest.approx(cut[0], rel=1e-6)
            for name in whole[1]:
                torch.testing.assert_close(whole[1][name], cut[1][name], rtol=1e-3, atol=2e-5)


def test_pieces_fit_the_buffer() -> None:
    assert piece_rows(151936, 2560, 2 * 9728 * 2560, 96) == 19456
    assert piece_rows(151936, 2560, 2 * 9728 * 2560, 8 * 512) == 19456
    assert piece_rows(151936, 2560, 2 * 9728 * 2560, 1 << 17) == 704
    assert piece_rows(300, 48, 1 << 20, 10) == 300
    assert piece_names("a", 130, 64) == ["a#0", "a#64", "a#128"]


def test_what_the_engine_leaves_to_the_plain_path_has_a_reason() -> None:
    assert "cpu" in why_not(request_of(), torch.device("cpu"))
    gpu = torch.device("cuda")
    assert why_not(request_of(), gpu) == ""
    assert "grad_accum 2" in why_not(request_of(grad_accum=2), gpu)
    assert "fp32" in why_not(request_of(optimizer_state_mode=OptimizerStateMode.FP32), gpu)
