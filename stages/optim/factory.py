"""Chooses between the fused implementations, which need CUDA, and the plain ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from stages.contract.recipe import OptimizerStateMode
from stages.optim.adamw import AdamW, AdamWSettings
from stages.optim.clip import RunningClip

if TYPE_CHECKING:
    from stages.optim.fused_adamw import FusedAdamW

# Triton comes with CUDA builds of torch only: the fused modules are imported where they are used.
Optimizer: TypeAlias = "AdamW | FusedAdamW"


def make_optimizer(parameters: dict[str, torch.nn.Parameter], settings: AdamWSettings) -> Optimizer:
    """The fused update if all parameters are on a CUDA device and states have 8 bits, else the plain one."""
    on_cuda = all(p.is_cuda for p in parameters.values())
    if on_cuda and settings.state_mode is OptimizerStateMode.INT8:
        from stages.optim.fused_adamw import FusedAdamW

        return FusedAdamW(parameters, settings)
    return AdamW(parameters, settings)


def make_clip(names: list[str], max_norm: float, device: torch.device, largest: int) -> RunningClip:
    """The fused clipping on a CUDA device, else the plain one; see `RunningClip`.

    Args:
        largest: Most elements of one gradient.
    """
    if device.type == "cuda":
        from stages.optim.fused_clip import FusedClip

        return FusedClip(names, max_norm, device, largest)
    return RunningClip(names, max_norm, device)
