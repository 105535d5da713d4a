"""A training step of the whole model without autograd: what `stages.train.trainer` computes, each parameter
updated once its gradient exists.

At any time there are a few rounded weights, a few gradients, and either every layer's kept activations or,
with checkpointing, every layer's input and one layer's activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stages.contract import LossKind, OptimizerStateMode, TrainRequest
from stages.engine import ops
from stages.engine.graph import Inputs, Replay
from stages.engine.head import ChunkedHead, piece_names, piece_rows
from stages.engine.layers import LayerActivations, LayerEngine
from stages.engine.streams import Gradients, SideStream, Weights
from stages.engine.vectors import Vectors
from stages.nvfp4.linear import Linear
from stages.optim.adamw import AdamW
from stages.optim.clip import RunningClip
from stages.optim.fused_clip import FusedClip
from stages.optim.schedule import group_lr_factor
from stages.qwen3.batches import Batch
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Layer, Qwen3, rotary_table
from stages.weights.model_weights import EMBEDDING, HEAD

if TYPE_CHECKING:
    from stages.optim.fused import FusedAdamW

_NORM = "model.norm.weight"


def why_not(request: TrainRequest, device: torch.device) -> str:
    """Why a request is trained by the plain path, in words; empty if the engine takes it."""
    if device.type != "cuda":
        return f"device {device}"
    if request.grad_accum > 1:
        return f"grad_accum {request.grad_accum}: gradients must wait for all batches of a step"
    if request.optimizer_state_mode is not OptimizerStateMode.INT8:
        return f"optimizer_state_mode {request.optimizer_state_mode}"
    return "" if request.loss is LossKind.CE else f"loss {request.loss}"


def largest_group(config: Qwen3Config) -> int:
    """Elements of the largest group of matrices that are multiplied as one: what the workspace holds twice."""
    heads = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    return config.hidden_size * max(heads, 2 * config.intermediate_size)


class Engine:
    """The model's parameters, and how a step changes them.

    Args:
        model: Its parameters are changed in place.
        names: Of the trained parameters.
        optimizer: Made for them; `begin_step` is the caller's.
        request: `lr_groups`, `clip_norm`, `gradient_checkpointing`, `batch_size` and `seq_len` are used.
        note: Receives one line if the step cannot be captured.
        capture: False launches kernel by kernel.
    """

    def __init__(
        self,
        model: Qwen3,
        names: list[str],
        optimizer: AdamW | FusedAdamW,
        request: TrainRequest,
        note: Callable[[str], None],
        capture: bool = True,
    ) -> None:
        config = self._config = model.config
        self._device = model.model.embed_tokens.weight.device
        self._optimizer, self._checkpointing = optimizer, request.gradient_checkpointing
        self._factors = {name: group_lr_factor(name, request.lr_groups) for name in names}
        for module in model.modules():
            if isinstance(module, Linear):
                module.forget()
        on_cuda = self._device.type == "cuda"
        if on_cuda:
            # Deterministic mode fills every new tensor with NaN: a pass over memory for each, and nothing
            # here reads one unwritten.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        trained, elements = set(names), largest_group(config)
        self._updates, self._norms = SideStream(self._device), SideStream(self._device)
        self._weights = Weights(elements, model.compute_dtype, self._device)
        self._gradients = Gradients(elements, model.compute_dtype, self._device, self._updates)
        self._piece = piece_rows(
            config.vocab_size, config.hidden_size, elements, request.batch_size * request.seq_len
        )
        clipped = [
            p
            for n in names
            for p in (piece_names(n, config.vocab_size, self._piece) if n in (EMBEDDING, HEAD) else [n])
        ]
        self.clip = FusedClip(clipped, request.clip_norm, self._device, elements) if on_cuda else RunningClip(
            clipped, request.clip_norm, self._device
        )  # fmt: skip
        self._vocabulary = ChunkedHead(
            model, trained, self._weights, self._gradients, self._update, self._piece, elements
        )
        vectors = {name: p.data for name, p in model.named_parameters() if p.ndim == 1}
        self._vectors = Vectors(
            vectors, {name: factor for name, factor in self._factors.items() if name in vectors}
        )
        self._layers: list[LayerEngine] = []
        for i, layer in enumerate(model.model.layers):
            assert isinstance(layer, Layer)
            common = (self._weights, self._gradients, self._update, self._vectors)
            self._layers.append(LayerEngine(layer, f"model.layers.{i}.", config, trained, *common))
            if on_cuda:
                torch.cuda.empty_cache()  # masters that were merged left blocks that nothing else fits
        lowest = min(
            (int(n.split(".")[2]) for n in names if n.startswith("model.layers.")), default=len(self._layers)
        )
        self._lowest = 0 if self._vocabulary.embedding_trained else lowest
        self._tables: dict[int, ops.Table] = {}
        self._replay = Replay(self._step, note, capture and on_cuda)

    @torch.no_grad()
    def step(self, batch: Batch) -> torch.Tensor:
        """Launches one step on a batch: 0-dim float32 mean loss of a target, on the device, valid until the
        next step.
        """
        return self._replay.run(batch)

    def _update(
        self, name: str, master: torch.Tensor, grad: torch.Tensor, first: int, sums: torch.Tensor | None
    ) -> None:
        key = name
        if name in (EMBEDDING, HEAD) and self._piece < self._config.vocab_size:
            key = f"{name}#{first // master.shape[1]}"
        factor = self._norms.run(
            lambda: self.clip.factor(key, grad, sums), *(() if sums is None else (sums,))
        )
        self._updates.run_after(
            [self._norms.done()], lambda: self._update_now(name, master, grad, first, factor), grad
        )

    def _update_now(
        self, name: str, master: torch.Tensor, grad: torch.Tensor, first: int, factor: torch.Tensor | None
    ) -> None:
        if grad.dtype != master.dtype and master.dtype == torch.bfloat16:
            grad = grad.to(master.dtype)
        self._optimizer.update(name, master, grad, self._factors[name], factor, first)

    def _table(self, length: int, dtype: torch.dtype) -> ops.Table:
        if length not in self._tables:
            positions = torch.arange(length, device=self._device)[None]
            cosine, sine = rotary_table(self._config, positions, dtype)
            self._tables[length] = (cosine[0, 0].contiguous(), sine[0, 0].contiguous())
        return self._tables[length]

    def _step(self, inputs: Inputs) -> None:
        vocabulary, ids = self._vocabulary, inputs.ids.flatten()
        table = self._table(inputs.ids.shape[1], vocabulary.dtype)
        x = vocabulary.embed(ids)
        kept: list[LayerActivations | torch.Tensor] = []
        for index, layer in enumerate(self._layers):
            before = x
            x, needed = layer.forward(x, table)
            if index >= self._lowest:
                kept.append(before if self._checkpointing else needed)
            del needed, before
        eps = self._config.rms_norm_eps
        norm = self._vectors.masters[_NORM]
        loss, state = vocabulary.loss(ops.rms_norm(x, norm, eps), inputs.targets, inputs.share)
        inputs.loss.copy_(loss)
        g = vocabulary.backward(state)
        g = ops.rms_norm_backward(x, norm, eps, g, torch.zeros_like(x), self._vectors.grad(_NORM))
        del x
        for layer in reversed(self._layers[self._lowest :]):
            one = kept.pop()
            if isinstance(one, torch.Tensor):
                one = layer.keep(one, table)
            g = layer.backward(g, one, table)
        self._vectors.learn(self._optimizer, self.clip, self._norms, self._updates)
        vocabulary.learn_embedding(ids, g, state)
        self._weights.end_step()
        self._norms.join()
        self._updates.join()
        self._gradients.end_step()
