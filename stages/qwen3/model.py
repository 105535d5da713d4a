"""The Qwen3 network: grouped-query attention with RMS-normed heads, rotary positions, SwiGLU.

Architecture after the Qwen3 technical report (arXiv 2505.09388) and its published `config.json`. Module names
are the parameter names of the weight file. Norms and attention's softmax are computed in float32, the rest
in the dtype of the embedding's output.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from stages.contract.recipe import ScaleRule
from stages.nvfp4.linear import Linear
from stages.qwen3.config import Qwen3Config
from stages.qwen3.kv_cache import KVCache, LayerCache


class RMSNorm(nn.Module):
    """x / rms(x) × weight over the last dimension, in float32 (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, size] to the same shape and dtype."""
        normed = F.rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(x.dtype)
        return normed * self.weight.to(x.dtype)


def rotary_table(
    config: Qwen3Config, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [batch, 1, length, head_dim], of positions [batch, length] (Su et al. 2021, arXiv
    2104.09864).
    """
    exponents = (
        torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=positions.device).float()
        / config.head_dim
    )
    angles = positions[..., None].float() * (1.0 / config.rope_theta**exponents)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotates heads [batch, heads, length, head_dim]: halves, not neighbours, form the pairs."""
    first, second = x.chunk(2, dim=-1)
    return x * table[0] + torch.cat((-second, first), dim=-1) * table[1]


class Attention(nn.Module):
    """Grouped-query attention with an RMS norm on every query and key head."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.grouped = query_size != kv_size
        self.q_proj = Linear(config.hidden_size, query_size)
        self.k_proj = Linear(config.hidden_size, kv_size)
        self.v_proj = Linear(config.hidden_size, kv_size)
        self.o_proj = Linear(query_size, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        table: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: LayerCache | None,
    ) -> torch.Tensor:
        """[batch, length, hidden] to the same.

        Args:
            x: Hidden states.
            table: Of `rotary_table`.
            mask: bool [batch, 1, length, keys], True where a key is visible; None is causal.
            cache: Keys and values so far; it is extended.
        """
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)
        query = rotate(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2), table)
        key = rotate(self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2), table)
        value = self.v_proj(x).view(shape).transpose(1, 2)
        if cache is not None:
            key, value = cache.append(key, value)
        causal = mask is None and length > 1
        out = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, enable_gqa=self.grouped
        )
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) × up(x)) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, hidden] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One transformer layer, norms before attention and before the MLP."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        table: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: LayerCache | None,
    ) -> torch.Tensor:
        """[batch, length, hidden] to the same; see `Attention.forward`."""
        x = x + self.self_attn(self.input_layernorm(x), table, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and final norm: what the weight file calls `model`."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        # Values come from the file. Drawing some here, on the meta device, would import torch's compiler.
        self.embed_tokens = nn.Embedding.from_pretrained(
            torch.empty(config.vocab_size, config.hidden_size), freeze=False
        )
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Qwen3(nn.Module):
    """A Qwen3 language model.

    Args:
        config: Its shape.
        tied: Whether the head is the embedding. The weight file decides, not `config.tie_word_embeddings`:
            the user's file stores a separate head although its config says tied.
    """

    def __init__(self, config: Qwen3Config, tied: bool) -> None:
        super().__init__()
        self.config, self.tied = config, tied
        self.compute_dtype = torch.float32
        self.checkpoint_layers = False
        self.model = Decoder(config)
        if not tied:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)

    def use_rule(self, rule: ScaleRule | None) -> None:
        """Sets the NVFP4 rounding of every linear layer; None uses the weights as they are."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.rule = rule

    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        cache: KVCache | None = None,
    ) -> torch.Tensor:
        """Final hidden states [batch, length, hidden] of token ids [batch, length].

        Args:
            ids: int64 token ids.
            positions: int64 [batch, length]; None continues from the cache (padding then goes on the right).
            mask: bool [batch, 1, length, keys]; None is causal, with the whole cache visible.
            cache: Keys and values so far; it is extended.
        """
        seen = 0 if cache is None else cache.length
        if positions is None:
            positions = torch.arange(seen, seen + ids.shape[1], device=ids.device).expand(ids.shape)
        if mask is None and seen and ids.shape[1] > 1:
            # A causal flag would align queries with the first keys; here they belong to the last ones.
            new = torch.ones(ids.shape[1], seen + ids.shape[1], dtype=torch.bool, device=ids.device)
            mask = new.tril(diagonal=seen).expand(len(ids), 1, -1, -1)
        x = self.model.embed_tokens(ids).to(self.compute_dtype)
        table = rotary_table(self.config, positions, x.dtype)
        for index, layer in enumerate(self.model.layers):
            layer_cache = None if cache is None else cache.layers[index]
            if self.checkpoint_layers and torch.is_grad_enabled():
                x = checkpoint(layer, x, table, mask, layer_cache, use_reentrant=False)
            else:
                x = layer(x, table, mask, layer_cache)
        return self.model.norm(x)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits […, vocab] of hidden states […, hidden]."""
        if self.tied:
            return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))
        return self.lm_head(hidden)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [batch, length, vocab] of token ids [batch, length], causal, positions from 0."""
        return self.head(self.hidden(ids))
