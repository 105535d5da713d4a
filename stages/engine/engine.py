"""A training step of the whole model without autograd: each parameter is updated once its gradient exists.

`stages.train.trainer` computes the same with autograd. At any time there are a few rounded weights, a few
gradients, and either every layer's activations or, with checkpointing, every layer's input and one layer's
activations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from stages.contract.requests import TrainRequest
from stages.engine import ops
from stages.engine.graph import GraphRunner, StepInputs
from stages.engine.head import ChunkedHead, chunk_names
from stages.engine.layers import LayerActivations, LayerEngine
from stages.engine.norm_weights import NormWeights
from stages.engine.streams import GradientBuffer, SideStream, WeightPrefetcher
from stages.memory import limits
from stages.nvfp4.linear import Linear
from stages.optim.factory import Optimizer, make_clip
from stages.optim.schedule import group_lr_factor
from stages.qwen3.batches import Batch
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Layer, Qwen3, rotary_table
from stages.weights.model_weights import EMBEDDING, HEAD

_FINAL_NORM = "model.norm.weight"


def plain_path_reason(request: TrainRequest, device: torch.device) -> str:
    """The settings that need the plain path, `grad_accum 2`; empty if the engine supports the request."""
    settings = limits.plain_path_settings(
        device.type, request.grad_accum, request.optimizer_state_mode, request.loss
    )
    return ", ".join(f"{key} {value}" for key, value in settings.items())


def largest_weight(config: Qwen3Config) -> int:
    """See `limits.largest_weight`."""
    return limits.largest_weight(
        config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads,
        config.head_dim,
    )  # fmt: skip


class Engine:
    """The model's parameters, and how a step changes them.

    Args:
        model: Its parameters are changed in place.
        names: Of the trained parameters.
        optimizer: Made for them; the caller calls its `begin_step`.
        request: `lr_groups`, `clip_norm`, `gradient_checkpointing`, `batch_size` and `seq_len` are used.
        note: Receives one line if the step cannot be captured.
        capture: False launches kernel by kernel.
    """

    def __init__(
        self,
        model: Qwen3,
        names: list[str],
        optimizer: Optimizer,
        request: TrainRequest,
        note: Callable[[str], None],
        capture: bool = True,
    ) -> None:
        config = self._config = model.config
        self._device = model.model.embed_tokens.weight.device
        self._optimizer, self._checkpointing = optimizer, request.gradient_checkpointing
        self._group_lr_factors = {name: group_lr_factor(name, request.lr_groups) for name in names}
        for module in model.modules():
            if isinstance(module, Linear):
                module.clear_cache()
        on_cuda = self._device.type == "cuda"
        if on_cuda:
            # Deterministic mode fills every new tensor with NaN, which costs a pass over memory; nothing here
            # reads a tensor before writing it.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        trained, elements = set(names), largest_weight(config)
        self._updates, self._norms = SideStream(self._device), SideStream(self._device)
        self._weights = WeightPrefetcher(elements, model.compute_dtype, self._device)
        self._gradients = GradientBuffer(elements, model.compute_dtype, self._device, self._updates)
        self._chunk_rows = limits.head_chunk_rows(
            config.vocab_size, config.hidden_size, elements, request.batch_size * request.seq_len
        )
        self.clip = make_clip(self._clip_names(names), request.clip_norm, self._device, elements)
        self._head = ChunkedHead(
            model, trained, self._weights, self._gradients, self._update, self._chunk_rows, elements
        )
        norms = {name: p.data for name, p in model.named_parameters() if p.ndim == 1}
        self._norm_weights = NormWeights(
            norms, {name: factor for name, factor in self._group_lr_factors.items() if name in norms}
        )
        self._layers: list[LayerEngine] = []
        for i, layer in enumerate(model.model.layers):
            assert isinstance(layer, Layer)
            common = (self._weights, self._gradients, self._update, self._norm_weights)
            self._layers.append(LayerEngine(layer, f"model.layers.{i}.", config, trained, *common))
            if on_cuda:
                torch.cuda.empty_cache()  # fused masters leave free blocks behind that nothing else fits
        layers = [int(name.split(".")[2]) for name in names if name.startswith("model.layers.")]
        lowest = min(layers, default=len(self._layers))
        self._first_trained = 0 if self._head.embedding_trained else lowest
        self._rotary: dict[int, ops.RotaryTable] = {}
        self.runner = GraphRunner(self._step, note, capture and on_cuda)

    def _clip_names(self, names: list[str]) -> list[str]:
        """Names of the running norm: those of the parameters, or of their chunks."""
        out: list[str] = []
        for name in names:
            chunked = name in (EMBEDDING, HEAD)
            out += chunk_names(name, self._config.vocab_size, self._chunk_rows) if chunked else [name]
        return out

    @torch.no_grad()
    def step(self, batch: Batch) -> torch.Tensor:
        """Launches one step on a batch: 0-dim float32 mean loss of a target, on the device.

        The tensor is valid until the next step.
        """
        return self.runner.run(batch)

    def _update(
        self,
        name: str,
        master: torch.Tensor,
        grad: torch.Tensor,
        first: int,
        square_sums: torch.Tensor | None,
    ) -> None:
        """Launches the running norm and the update in their side streams; see `weights.UpdateFunction`."""
        clip_name = name
        if name in (EMBEDDING, HEAD) and self._chunk_rows < self._config.vocab_size:
            clip_name = f"{name}#{first // master.shape[1]}"
        reads = () if square_sums is None else (square_sums,)
        clip_factor = self._norms.run(lambda: self.clip.factor(clip_name, grad, square_sums), *reads)

        def update() -> None:
            same_dtype = grad.dtype == master.dtype or master.dtype != torch.bfloat16
            self._optimizer.update(
                name,
                master,
                grad if same_dtype else grad.to(master.dtype),
                self._group_lr_factors[name],
                clip_factor,
                first,
            )

        self._updates.run_after([self._norms.record()], update, grad)

    def _rotary_table(self, length: int, dtype: torch.dtype) -> ops.RotaryTable:
        if length not in self._rotary:
            positions = torch.arange(length, device=self._device)[None]
            cos, sin = rotary_table(self._config, positions, dtype)
            self._rotary[length] = (cos[0, 0].contiguous(), sin[0, 0].contiguous())
        return self._rotary[length]

    def _step(self, inputs: StepInputs) -> None:
        head, ids = self._head, inputs.ids.flatten()
        rotary = self._rotary_table(inputs.ids.shape[1], head.dtype)
        x = head.embed(ids)
        saved: list[LayerActivations | torch.Tensor] = []
        for index, layer in enumerate(self._layers):
            layer_input = x
            x, activations = layer.forward(x, rotary)
            if index >= self._first_trained:
                saved.append(layer_input if self._checkpointing else activations)
            del activations, layer_input
        eps = self._config.rms_norm_eps
        norm = self._norm_weights.masters[_FINAL_NORM]
        loss, state = head.loss(ops.rms_norm(x, norm, eps), inputs.targets, inputs.loss_weight)
        inputs.loss.copy_(loss)
        g = head.backward(state)
        norm_grad = self._norm_weights.grad(_FINAL_NORM)
        g = ops.rms_norm_backward(x, norm, eps, g, torch.zeros_like(x), norm_grad)
        del x
        for layer in reversed(self._layers[self._first_trained :]):
            one = saved.pop()
            if isinstance(one, torch.Tensor):
                one = layer.activations(one, rotary)
            g = layer.backward(g, one, rotary)
        self._norm_weights.update(self._optimizer, self.clip, self._norms, self._updates)
        head.update_embedding(ids, g, state)
        self._weights.reset()
        self._norms.join()
        self._updates.join()
        self._gradients.reset()
