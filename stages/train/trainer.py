"""The training loop: batches in, masters changed in place, the update of each parameter inside backward."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from stages.contract.events import ExitCode, Phase
from stages.contract.recipe import LossKind
from stages.contract.requests import TrainRequest
from stages.contract.signals import StopSignals
from stages.engine.engine import Engine, plain_path_reason
from stages.optim.adamw import AdamWSettings
from stages.optim.clip import RunningClip
from stages.optim.factory import make_optimizer
from stages.optim.schedule import group_lr_factor, schedule_factor
from stages.process.process import Reporter, StageError
from stages.qwen3.batches import Batch, EncodedRow, collate, row_order
from stages.qwen3.model import Qwen3
from stages.train.checkpoint import Checkpoints, TrainProgress


@dataclass
class TrainResult:
    """What a training did."""

    steps: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    stopped_at: str = ""
    """The phase of `stop_after`, if it ended there."""


def trainable_names(model: Qwen3, train_last_layers: int) -> list[str]:
    """Names of the parameters to train: all, or those of the last N layers, the final norm and the head.

    Raises:
        StageError: if there are fewer layers.
    """
    names = [name for name, _ in model.named_parameters()]
    if not train_last_layers:
        return names
    layers = model.config.num_hidden_layers
    if train_last_layers > layers:
        raise StageError(
            ExitCode.BAD_INPUT, f"train_last_layers: {train_last_layers}: the model has {layers} layers"
        )
    prefixes = [f"model.layers.{i}." for i in range(layers - train_last_layers, layers)]
    prefixes += ["model.norm.", "model.embed_tokens." if model.tied else "lm_head."]
    return [name for name in names if name.startswith(tuple(prefixes))]


class Trainer:
    """One model, its optimizer, and its rows."""

    def __init__(
        self,
        model: Qwen3,
        names: list[str],
        rows: list[EncodedRow],
        request: TrainRequest,
        reporter: Reporter,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.model, self.rows, self.request, self.reporter = model, rows, request, reporter
        self.checkpoints = checkpoints or Checkpoints(request, rows, reporter)
        self.device = reporter.device
        parameters = dict(model.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in set(names))
        self.trainable = {name: parameters[name] for name in names}
        self.optimizer = make_optimizer(
            self.trainable,
            AdamWSettings(
                request.beta1,
                request.beta2,
                request.eps,
                request.weight_decay,
                request.optimizer_state_mode,
                request.rounding,
                request.step_chunk_rows,
                request.seed,
            ),
        )
        self.step_number = 0
        self._update_now = False
        self.engine = self._make_engine(names)
        self.clip = self.engine.clip if self.engine else RunningClip(names, request.clip_norm, self.device)
        for name, parameter in self.trainable.items() if self.engine is None else ():
            parameter.register_post_accumulate_grad_hook(self._hook(name))
        model.checkpoint_layers = request.gradient_checkpointing
        model.train()

    def _make_engine(self, names: list[str]) -> Engine | None:
        """The full-size engine, or None for the plain path; on a GPU the reason for that is noted."""
        reason = plain_path_reason(self.request, self.device)
        if not reason:
            return Engine(self.model, names, self.optimizer, self.request, self.reporter.note)
        if self.device.type == "cuda":
            self.reporter.note(f"plain training path: {reason}")
        return None

    def _hook(self, name: str):
        factor = group_lr_factor(name, self.request.lr_groups)

        def update(parameter: torch.Tensor) -> None:
            if not self._update_now or parameter.grad is None:
                return
            grad, parameter.grad = parameter.grad, None
            self.optimizer.update(name, parameter, grad, factor, self.clip.factor(name, grad))

        return update

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor that persists between steps, by name; checkpoints save and restore these in place."""
        tensors = {f"master/{name}": parameter.detach() for name, parameter in self.trainable.items()}
        for name, state in self.optimizer.states.items():
            tensors |= {f"{key}/{name}": tensor for key, tensor in state.tensors().items()}
        return tensors | {f"clip/{key}": tensor for key, tensor in self.clip.tensors().items()}

    def run(self, stop: StopSignals) -> TrainResult:
        """Trains up to `request.steps` steps, from the checkpoint of `request.resume` if there is one.

        Raises:
            StageError: `NON_FINITE` if a loss or gradient norm is not finite; `INTERRUPTED` after the step in
                which a stop was requested.
        """
        progress = self.checkpoints.restore(self.state_tensors())
        order = itertools.islice(
            row_order(len(self.rows), self.request.sampling, self.request.seed), progress.rows, None
        )
        result = TrainResult(progress.step, progress.figures)
        first, self.step_number = True, progress.step
        while self.step_number < self.request.steps:
            started = time.perf_counter()
            batches = [self._next_batch(order) for _ in range(self.request.grad_accum)]
            if first and self._stops_after(Phase.BATCH_READY, result):
                break
            self.step_number += 1
            lr = self.request.lr * schedule_factor(self.step_number, self.request)
            self.optimizer.begin_step(self.step_number, lr)
            loss = self._step(batches, first, result)
            if result.stopped_at:
                break
            values = {
                "loss": loss,
                "lr": lr,
                **self._measure(progress),
                "tokens": float(sum(b.tokens for b in batches)),
            }
            result.steps = progress.step = self.step_number
            progress.rows += self.request.batch_size * self.request.grad_accum
            progress.figures |= {"loss_first": progress.figures.get("loss_first", loss), "loss_last": loss}
            progress.figures["tokens"] = progress.figures.get("tokens", 0.0) + values["tokens"]
            self._report(values | {"step_seconds": time.perf_counter() - started})
            if first and self._stops_after(Phase.OPTIMIZER_STEP_DONE, result):
                break
            first = False
            self._save_or_stop(progress, stop)
        if progress.ratio_count:
            result.figures["update_ratio_mean"] = progress.ratio_sum / progress.ratio_count
        return result

    def _measure(self, progress: TrainProgress) -> dict[str, float]:
        """Gradient norm and effective update ratio of the step that was just done."""
        norm, ratio = self.clip.norm(), self.optimizer.take_update_ratio()
        if not math.isfinite(norm):
            raise StageError(
                ExitCode.NON_FINITE,
                f"step {self.step_number}: gradient norm is {norm}: lower lr or raise warmup_steps",
            )
        if math.isfinite(ratio):  # it is not where the rate is 0
            progress.ratio_sum += ratio
            progress.ratio_count += 1
        return {"grad_norm": norm, "update_ratio": ratio}

    def _report(self, values: dict[str, float]) -> None:
        step, steps = self.step_number, self.request.steps
        if step % self.request.log_every == 0 or step == steps:
            self.reporter.step(
                step, steps, {k: float(f"{v:.6g}") for k, v in values.items() if math.isfinite(v)}
            )

    def _save_or_stop(self, progress: TrainProgress, stop: StopSignals) -> None:
        """Saves a checkpoint if one is due, and ends the stage if a stop was requested."""
        if self.checkpoints.due(progress.step) or (stop.count and self.checkpoints.on):
            self.checkpoints.save(self.state_tensors(), progress)
        if stop.count:
            raise StageError(
                ExitCode.INTERRUPTED, f"asked to stop: stopped after step {progress.step}, nothing exported"
            )

    def _next_batch(self, order) -> Batch:
        return collate([self.rows[next(order)] for _ in range(self.request.batch_size)], self.device)

    def _stops_after(self, phase: Phase, result: TrainResult) -> bool:
        """Reports the phase; whether the request ends there."""
        self.reporter.phase(phase)
        if self.request.stop_after == phase:
            result.stopped_at = phase
        return bool(result.stopped_at)

    def _step(self, batches: list[Batch], first: bool, result: TrainResult) -> float:
        """Forward and backward of all batches of one step; returns the mean loss per answer token."""
        if first and self._stops_after(Phase.ZERO_GRAD_DONE, result):
            return float("nan")
        if self.engine is not None:
            total = self._finite(self.engine.step(batches[0]).item())
            if first:
                self._stops_after(Phase.BACKWARD_DONE, result)
            return total
        targets = sum(len(b.targets) for b in batches)
        total = 0.0
        for index, batch in enumerate(batches):
            loss = self._loss(batch) / targets
            value = self._finite(loss.item())
            self._update_now = index == len(batches) - 1
            loss.backward()
            total += value
        if first:
            self._stops_after(Phase.BACKWARD_DONE, result)
        return total

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise StageError(
                ExitCode.NON_FINITE,
                f"step {self.step_number}: loss is {loss}: lower lr or raise warmup_steps",
            )
        return loss

    def _loss(self, batch: Batch) -> torch.Tensor:
        """Sum of the loss over answer tokens; only their positions go through the head."""
        hidden = self.model.hidden(batch.ids).flatten(0, 1)[batch.where]
        logits = self.model.head(hidden).float()
        if self.request.loss is LossKind.SCALAR:
            return logits.mean() * len(batch.targets)
        return F.cross_entropy(logits, batch.targets, reduction="sum")
