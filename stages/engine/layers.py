"""Forward and backward of one transformer layer; each weight is updated as soon as its gradient exists."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stages.engine import ops
from stages.engine.attention import AttentionOutput, attention, attention_backward
from stages.engine.norm_weights import NormWeights
from stages.engine.streams import GradientBuffer, WeightPrefetcher
from stages.engine.weights import FusedProjection, UpdateFunction
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Layer


@dataclass
class LayerActivations:
    """What the backward pass of a layer needs; n is batch × length."""

    x: torch.Tensor
    """Input [n, hidden]."""
    qkv: torch.Tensor
    """[n, (Q + 2 K) × head_dim], before norms and positions."""
    attention: AttentionOutput
    after_attention: torch.Tensor
    """[n, hidden], with the residual."""
    gate_up: torch.Tensor
    """[n, 2 × intermediate]."""


class LayerEngine:
    """One layer. Its parameters are the model's own: they are changed in place.

    Args:
        prefix: Of the layer's parameter names, with the dot.
        trained: Names of the parameters that are updated.
    """

    def __init__(
        self,
        layer: Layer,
        prefix: str,
        config: Qwen3Config,
        trained: set[str],
        weights: WeightPrefetcher,
        gradients: GradientBuffer,
        update: UpdateFunction,
        norm_weights: NormWeights,
    ) -> None:
        modules = {"self_attn": layer.self_attn, "mlp": layer.mlp}

        def fused(owner: str, *names: str) -> FusedProjection:
            linears = {f"{prefix}{owner}.{n}.weight": getattr(modules[owner], n) for n in names}
            return FusedProjection(linears, trained, weights, gradients, update)

        self._qkv, self._out = fused("self_attn", "q_proj", "k_proj", "v_proj"), fused("self_attn", "o_proj")
        self._gate_up, self._down = fused("mlp", "gate_proj", "up_proj"), fused("mlp", "down_proj")
        self._norms = {
            "input": f"{prefix}input_layernorm.weight", "post": f"{prefix}post_attention_layernorm.weight",
            "q": f"{prefix}self_attn.q_norm.weight", "k": f"{prefix}self_attn.k_norm.weight",
        }  # fmt: skip
        self._norm_weights = norm_weights
        self._head_counts = (config.num_attention_heads, config.num_key_value_heads)
        self._head_dim, self._eps = config.head_dim, config.rms_norm_eps

    def forward(self, x: torch.Tensor, rotary: ops.RotaryTable) -> tuple[torch.Tensor, LayerActivations]:
        """[n, hidden] to the same, and what `backward` needs."""
        saved = self.activations(x, rotary)
        return saved.after_attention + self._down.forward(ops.swiglu(saved.gate_up)), saved

    def activations(self, x: torch.Tensor, rotary: ops.RotaryTable) -> LayerActivations:
        """What `backward` needs: `forward` without its last product."""
        length, (q, k), dim = len(rotary[0]), self._head_counts, self._head_dim
        qkv = self._qkv.forward(ops.rms_norm(x, self._norm_weight("input"), self._eps))
        query, key = ops.qk_norm_rope(
            qkv, self._norm_weight("q"), self._norm_weight("k"), rotary, length, dim, self._head_counts,
            self._eps,
        )  # fmt: skip
        value = qkv.view(len(x), q + 2 * k, dim)[:, q + k :]
        output = attention(query, key, value, length)
        after_attention = x + self._out.forward(output.rows())
        gate_up = self._gate_up.forward(ops.rms_norm(after_attention, self._norm_weight("post"), self._eps))
        return LayerActivations(x, qkv, output, after_attention, gate_up)

    def backward(self, grad: torch.Tensor, saved: LayerActivations, rotary: ops.RotaryTable) -> torch.Tensor:
        """Gradient of the input from that of the output [n, hidden]; updates every trained parameter.

        Overwrites `saved`.
        """
        active, g = ops.swiglu_backward(saved.gate_up, self._down.input_grad(grad))
        self._down.update(grad, active)
        del active
        normed = ops.rms_norm(saved.after_attention, self._norm_weight("post"), self._eps)
        g = self._gate_up.backward(g, normed)
        del normed
        after_attention = self._norm_backward("post", saved.after_attention, g, grad)
        g = self._attention_backward(after_attention, saved, rotary)
        g = self._qkv.backward(g, ops.rms_norm(saved.x, self._norm_weight("input"), self._eps))
        return self._norm_backward("input", saved.x, g, after_attention)

    def _norm_weight(self, norm: str) -> torch.Tensor:
        return self._norm_weights.masters[self._norms[norm]]

    def _attention_backward(
        self, grad: torch.Tensor, saved: LayerActivations, rotary: ops.RotaryTable
    ) -> torch.Tensor:
        g = self._out.backward(grad, saved.attention.rows())
        grads = attention_backward(saved.attention, g)
        return ops.qk_norm_rope_backward(
            saved.qkv, self._norm_weight("q"), self._norm_weight("k"), rotary, len(rotary[0]), self._head_dim,
            self._head_counts, self._eps, grads, self._norm_weights.grad(self._norms["q"], self._norms["k"]),
        )  # fmt: skip

    def _norm_backward(
        self, norm: str, x: torch.Tensor, grad: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        weight_grad = self._norm_weights.grad(self._norms[norm])
        return ops.rms_norm_backward(x, self._norm_weight(norm), self._eps, grad, residual, weight_grad)
