"""Forward and backward of one transformer layer, written out: what is kept between them, and when each weight
is updated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stages.engine import ops
from stages.engine.attention import AttentionOutput, attention, attention_backward
from stages.engine.streams import Gradients, Weights
from stages.engine.vectors import Vectors
from stages.engine.weights import Group, Update
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
    middle: torch.Tensor
    """[n, hidden] after attention."""
    merged: torch.Tensor
    """Gate and up [n, 2 × intermediate]."""


class LayerEngine:
    """One layer. Its parameters are the model's own: they are changed in place.

    Args:
        prefix: Of the layer's parameter names, with the dot.
    """

    def __init__(
        self,
        layer: Layer,
        prefix: str,
        config: Qwen3Config,
        trained: set[str],
        weights: Weights,
        gradients: Gradients,
        update: Update,
        vectors: Vectors,
    ) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        named = {"self_attn": attention, "mlp": mlp}

        def group(owner: str, *names: str) -> Group:
            linears = {f"{prefix}{owner}.{n}.weight": getattr(named[owner], n) for n in names}
            return Group(linears, trained, weights, gradients, update)

        self._qkv, self._out = group("self_attn", "q_proj", "k_proj", "v_proj"), group("self_attn", "o_proj")
        self._merged, self._down = group("mlp", "gate_proj", "up_proj"), group("mlp", "down_proj")
        self._norms = {
            "input": f"{prefix}input_layernorm.weight", "post": f"{prefix}post_attention_layernorm.weight",
            "q": f"{prefix}self_attn.q_norm.weight", "k": f"{prefix}self_attn.k_norm.weight",
        }  # fmt: skip
        self._vectors = vectors
        self._counts = (config.num_attention_heads, config.num_key_value_heads)
        self._head_dim, self._eps = config.head_dim, config.rms_norm_eps

    def forward(self, x: torch.Tensor, table: ops.Table) -> tuple[torch.Tensor, LayerActivations]:
        """[n, hidden] to the same, and what `backward` needs."""
        kept = self.keep(x, table)
        return self._down.add_forward(kept.middle, ops.swiglu(kept.merged)), kept

    def keep(self, x: torch.Tensor, table: ops.Table) -> LayerActivations:
        """What `backward` needs: `forward` without its last product."""
        length, (q, k), dim = len(table[0]), self._counts, self._head_dim
        qkv = self._qkv.forward(ops.rms_norm(x, self._weight("input"), self._eps))
        query, key = ops.heads(
            qkv, self._weight("q"), self._weight("k"), table, length, dim, self._counts, self._eps
        )
        value = qkv.view(len(x), q + 2 * k, dim)[:, q + k :]
        attended = attention(query, key, value, length)
        middle = self._out.add_forward(x, attended.rows())
        merged = self._merged.forward(ops.rms_norm(middle, self._weight("post"), self._eps))
        return LayerActivations(x, qkv, attended, middle, merged)

    def backward(self, grad: torch.Tensor, kept: LayerActivations, table: ops.Table) -> torch.Tensor:
        """Gradient of the input from that of the output [n, hidden]; updates every trained parameter. Uses
        `kept` up.
        """
        active, g = ops.swiglu_backward(kept.merged, self._down.input_grad(grad))
        self._down.learn(grad, active)
        del active
        g = self._merged.backward(g, ops.rms_norm(kept.middle, self._weight("post"), self._eps))
        middle = self._norm_backward("post", kept.middle, g, grad)
        g = self._attention_backward(middle, kept, table)
        g = self._qkv.backward(g, ops.rms_norm(kept.x, self._weight("input"), self._eps))
        return self._norm_backward("input", kept.x, g, middle)

    def _weight(self, norm: str) -> torch.Tensor:
        return self._vectors.masters[self._norms[norm]]

    def _attention_backward(
        self, grad: torch.Tensor, kept: LayerActivations, table: ops.Table
    ) -> torch.Tensor:
        g = self._out.backward(grad, kept.attention.rows())
        grads = attention_backward(kept.attention, g)
        return ops.heads_backward(
            kept.qkv, self._weight("q"), self._weight("k"), table, len(table[0]), self._head_dim, self._counts, self._eps,
            grads, self._vectors.grad(self._norms["q"], self._norms["k"]),
        )  # fmt: skip

    def _norm_backward(
        self, norm: str, x: torch.Tensor, grad: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        weight_grad = self._vectors.grad(self._norms[norm])
        return ops.rms_norm_backward(x, self._weight(norm), self._eps, grad, residual, weight_grad)
