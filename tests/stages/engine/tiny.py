"""A tiny model, requests and batches for it, and the step of the plain path."""

from __future__ import annotations

import torch

from stages.contract.recipe import DataSource, OptimizerStateMode, Rounding, ScaleRule
from stages.contract.requests import TrainRequest
from stages.optim.adamw import AdamW, AdamWSettings
from stages.optim.clip import RunningClip
from stages.optim.schedule import group_lr_factor
from stages.qwen3.batches import Batch
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Qwen3
from tests.recipes import PLAIN


def tiny_model(tied: bool, *, seed: int = 0, vocab: int = 300, dtype: torch.dtype = torch.float32) -> Qwen3:
    """Three layers, grouped queries, random weights; norms differ from 1, so that their gradients count."""
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
    values: dict[str, object] = {"data": [DataSource("x")], "steps": 3, "lr": 1e-2}
    values |= {"batch_size": 4, "seq_len": 32}
    names = ("model_dir", "input_weight", "output_weight", "events", "result")
    return TrainRequest(**{name: name for name in names}, **(PLAIN | values | changes))  # type: ignore[arg-type]


def batch_of(seed: int, rows: int = 4, width: int = 21, vocab: int = 300) -> Batch:
    """Random tokens, a third of them equal; half of the positions have targets."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (rows, width), generator=g)
    ids[:, ::3] = 7
    where = torch.randperm(rows * width, generator=g)[: rows * width // 2].sort().values
    return Batch(ids, where, torch.randint(0, vocab, where.shape, generator=g), rows * width)


def plain_step(
    model: Qwen3, names: list[str], optimizer: AdamW, clip: RunningClip, request: TrainRequest, batch: Batch
) -> float:
    """One step as `stages.train.trainer` does it, with the updates after backward, norm weights last."""
    grads: list[tuple[str, torch.Tensor]] = []
    parameters = dict(model.named_parameters())
    handles = [
        parameters[n].register_post_accumulate_grad_hook(lambda p, n=n: grads.append((n, p.grad.clone())))  # type: ignore[misc,union-attr]
        for n in names
    ]
    logits = model.head(model.hidden(batch.ids).flatten(0, 1)[batch.where]).float()
    loss = torch.nn.functional.cross_entropy(logits, batch.targets)
    loss.backward()

    def update(name: str, grad: torch.Tensor, clip_factor: torch.Tensor | None) -> None:
        factor = group_lr_factor(name, request.lr_groups)
        optimizer.update(name, parameters[name].data, grad, factor, clip_factor)

    for name, grad in grads:
        if grad.ndim > 1:
            update(name, grad, clip.factor(name, grad))
    norms = {name: grad for name, grad in grads if grad.ndim == 1}
    if norms:
        sizes = {name: grad.numel() for name, grad in norms.items()}
        clip_factor = clip.factor_many(sizes, torch.cat(list(norms.values())))
        for name, grad in norms.items():
            update(name, grad, clip_factor)
    for handle in handles:
        handle.remove()
    model.zero_grad(set_to_none=True)
    return float(loss.detach())


def settings(request: TrainRequest) -> AdamWSettings:
    """An optimizer with float32 states: the last bit of a sum may change an 8-bit code."""
    return AdamWSettings(0.9, 0.999, 1e-8, 0.1, OptimizerStateMode.FP32, Rounding.FP32, 1024, request.seed)
