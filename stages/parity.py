"""Do the training forward and the file's own inference agree? Asked before every training, of the first token after a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stages.dat import DatFile
from stages.nvfp4.linear import Linear
from stages.qwen3.model import Layer, Qwen3, RMSNorm, rotary_table
from stages.qwen3.weights import EMBEDDING, HEAD, Layout, stored_values

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest difference of logits over the largest logit, by compute dtype: rounding of sums in another order stays well below."""


@dataclass(frozen=True)
class Parity:
    """How far two forwards are apart."""

    difference: float
    """Largest difference of two logits, over the largest logit."""
    tolerance: float
    same_token: bool

    @property
    def agrees(self) -> bool:
        """True within the tolerance; NaN never is."""
        return self.difference <= self.tolerance


@torch.no_grad()
def bridge_logits(dat: DatFile, layout: Layout, model: Qwen3, ids: torch.Tensor) -> torch.Tensor:
    """Last-position logits [batch, vocab] from the stored weights, one layer's in memory at a time. No master and no NVFP4 encoder.

    Args:
        model: Gives config, dtype and device; its weights are not used.
    """
    device, dtype = ids.device, model.compute_dtype
    x = F.embedding(ids, stored_values(dat, layout, EMBEDDING, dtype, device))
    positions = torch.arange(ids.shape[1], device=device).expand(ids.shape)
    table = rotary_table(model.config, positions, dtype)
    for index in range(model.config.num_hidden_layers):
        x = _stored_layer(dat, layout, model, index, device)(x, table, None, None)
    norm = RMSNorm(model.config.hidden_size, model.config.rms_norm_eps).to(device)
    norm.weight.copy_(stored_values(dat, layout, "model.norm.weight", dtype, device))
    head = stored_values(dat, layout, EMBEDDING if layout.tied else HEAD, dtype, device)
    return F.linear(norm(x)[:, -1], head).float()


def _stored_layer(dat: DatFile, layout: Layout, model: Qwen3, index: int, device: torch.device) -> torch.nn.Module:
    with torch.device("meta"):
        layer = Layer(model.config)
    for name in dict(layer.named_parameters()):
        values = stored_values(dat, layout, f"model.layers.{index}.{name}", model.compute_dtype, device)
        owner = layer.get_submodule(name.rpartition(".")[0])
        assert isinstance(owner, (Linear, RMSNorm))
        owner.weight = torch.nn.Parameter(values, requires_grad=False)
    return layer


@torch.no_grad()
def check_parity(dat: DatFile, layout: Layout, model: Qwen3, prompt: list[int]) -> Parity:
    """Compares `model`, which is about to train, with the file it was loaded from."""
    ids = torch.tensor([prompt], device=model.model.embed_tokens.weight.device)
    trained = model.head(model.hidden(ids)[:, -1]).float()
    stored = bridge_logits(dat, layout, model, ids)
    difference = ((trained - stored).abs().max() / stored.abs().max()).item()
    return Parity(difference, TOLERANCE[model.compute_dtype], bool(trained.argmax() == stored.argmax()))
