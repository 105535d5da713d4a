"""Do both inference paths agree? Compares their activations layer by layer, for the token after a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stages.nvfp4.linear import Linear
from stages.qwen3.model import Layer, Qwen3, RMSNorm, rotary_table
from stages.weights.dat import DatFile
from stages.weights.model_weights import EMBEDDING, HEAD, Layout, stored_values

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest difference of logits over the largest logit, by compute dtype: rounding of sums in another order
stays well below.
"""
TOP = 10


@dataclass(frozen=True)
class ActivationStats:
    """The activation of one path at one point of the network."""

    nan: int
    inf: int
    rms: float
    """Root mean square; not finite if a value is not."""


@dataclass(frozen=True)
class Comparison:
    """The activations of both paths at one point of the network."""

    name: str
    """`embedding`, `layer 3 attention`, `layer 3 mlp` (each with its residual), `norm` or `head`."""
    bridge: ActivationStats
    fp2: ActivationStats
    difference: float
    """Largest difference of two values, over the largest stored one; NaN if either is not finite."""

    @property
    def finite(self) -> bool:
        """True if neither path has NaN or infinity here."""
        return not (self.bridge.nan or self.bridge.inf or self.fp2.nan or self.fp2.inf)


@dataclass(frozen=True)
class Token:
    """One candidate for the first token."""

    id: int
    logit: float


@dataclass(frozen=True)
class Parity:
    """How far two forwards are apart."""

    comparisons: tuple[Comparison, ...]
    """In the order of computation; the last is `head`."""
    bridge_top: tuple[Token, ...]
    fp2_top: tuple[Token, ...]
    tolerance: float

    @property
    def difference(self) -> float:
        """Largest difference of two logits, over the largest logit."""
        return self.comparisons[-1].difference

    @property
    def agrees(self) -> bool:
        """True if the logits are within the tolerance; NaN never is."""
        return self.difference <= self.tolerance

    @property
    def first_mismatch(self) -> Comparison | None:
        """The first point that is beyond the tolerance or not finite."""
        return next((p for p in self.comparisons if not p.difference <= self.tolerance), None)

    @property
    def reason(self) -> str:
        """Where they first differ and how, in a few words; empty if nowhere."""
        first = self.first_mismatch
        if first is None:
            return ""
        if first.finite:
            return f"they part at {first.name}, by {first.difference:.2e} of the largest value"
        paths = {"bridge": first.bridge, "fp2": first.fp2}
        wrong = [name for name, stats in paths.items() if stats.nan or stats.inf]
        return f"NaN or infinity from {first.name} on, in {' and '.join(wrong)}"


Activations = list[tuple[str, torch.Tensor]]


@contextmanager
def _recorded(layer: torch.nn.Module, index: int, values: Activations) -> Iterator[None]:
    """Records the activation after a layer's attention and after its MLP, each with the residual."""
    assert isinstance(layer, Layer)

    def after_attention(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        values.append((f"layer {index} attention", inputs[0]))

    def after_mlp(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        values.append((f"layer {index} mlp", output))
        for part in layer.modules():
            if isinstance(part, Linear):
                # Keeps one layer's rounded weights at a time: all of them are another model in memory.
                part.clear_cache()

    hooks = [
        layer.post_attention_layernorm.register_forward_pre_hook(after_attention),
        layer.register_forward_hook(after_mlp),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _bridge_values(dat: DatFile, layout: Layout, model: Qwen3, ids: torch.Tensor) -> Activations:
    """From the stored weights, one layer's in memory at a time, without masters or NVFP4 encoder.

    `model` gives config and dtype.
    """
    device, dtype = ids.device, model.compute_dtype
    x = F.embedding(ids, stored_values(dat, layout, EMBEDDING, dtype, device))
    values: Activations = [("embedding", x)]
    positions = torch.arange(ids.shape[1], device=device).expand(ids.shape)
    table = rotary_table(model.config, positions, dtype)
    for index in range(model.config.num_hidden_layers):
        layer = _stored_layer(dat, layout, model, index, device)
        with _recorded(layer, index, values):
            x = layer(x, table, None, None)
    norm = RMSNorm(model.config.hidden_size, model.config.rms_norm_eps).to(device)
    norm.weight.copy_(stored_values(dat, layout, "model.norm.weight", dtype, device))
    x = norm(x)
    head = stored_values(dat, layout, EMBEDDING if layout.tied else HEAD, dtype, device)
    return [*values, ("norm", x), ("head", F.linear(x[:, -1], head))]


def _stored_layer(
    dat: DatFile, layout: Layout, model: Qwen3, index: int, device: torch.device
) -> torch.nn.Module:
    with torch.device("meta"):
        layer = Layer(model.config)
    for name in dict(layer.named_parameters()):
        values = stored_values(dat, layout, f"model.layers.{index}.{name}", model.compute_dtype, device)
        owner = layer.get_submodule(name.rpartition(".")[0])
        assert isinstance(owner, (Linear, RMSNorm))
        owner.weight = torch.nn.Parameter(values, requires_grad=False)
    return layer


def _fp2_values(model: Qwen3, ids: torch.Tensor) -> Activations:
    """From the forward that trains, by hooks."""
    values: Activations = []

    def after_embedding(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        values.append(("embedding", output.to(model.compute_dtype)))

    with ExitStack() as hooks:
        hooks.callback(model.model.embed_tokens.register_forward_hook(after_embedding).remove)
        for index, layer in enumerate(model.model.layers):
            hooks.enter_context(_recorded(layer, index, values))
        hidden = model.hidden(ids)
    return [*values, ("norm", hidden), ("head", model.head(hidden[:, -1]))]


def _stats(values: torch.Tensor) -> ActivationStats:
    return ActivationStats(
        int(values.isnan().sum()), int(values.isinf().sum()), values.square().mean().sqrt().item()
    )


def _compared(name: str, bridge: torch.Tensor, fp2: torch.Tensor) -> Comparison:
    bridge, fp2 = bridge.float(), fp2.float()
    largest = max(bridge.abs().max().item(), torch.finfo(torch.float32).tiny)
    return Comparison(name, _stats(bridge), _stats(fp2), (fp2 - bridge).abs().max().item() / largest)


def _top(logits: torch.Tensor) -> tuple[Token, ...]:
    found = logits[0].float().topk(min(TOP, logits.shape[1]))
    return tuple(Token(i, v) for i, v in zip(found.indices.tolist(), found.values.tolist(), strict=True))


@torch.no_grad()
def check_parity(dat: DatFile, layout: Layout, model: Qwen3, prompt: list[int]) -> Parity:
    """Compares a model that is about to train with the file that it was loaded from.

    Args:
        dat: The weight file.
        layout: Of that file.
        model: From `load_model` with `fp2`.
        prompt: Token ids.
    """
    ids = torch.tensor([prompt], device=model.model.embed_tokens.weight.device)
    bridge, fp2 = _bridge_values(dat, layout, model, ids), _fp2_values(model, ids)
    comparisons = tuple(_compared(name, a, b) for (name, a), (_, b) in zip(bridge, fp2, strict=True))
    return Parity(comparisons, _top(bridge[-1][1]), _top(fp2[-1][1]), TOLERANCE[model.compute_dtype])
