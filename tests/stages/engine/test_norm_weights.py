"""The norms' weights: where their gradients lie, and one update for all."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import OptimizerStateMode, Rounding
from stages.engine.norm_weights import NormWeights
from stages.engine.streams import SideStream
from stages.optim.adamw import AdamW, AdamWSettings
from stages.optim.clip import RunningClip

CPU = torch.device("cpu")


def test_neighbours_of_one_size_share_a_gradient() -> None:
    masters = {"q": torch.ones(4), "k": torch.ones(4), "input": torch.ones(6)}
    norms = NormWeights(masters, {"q": 1.0, "k": 1.0})
    pair = norms.grad("q", "k")
    pair.copy_(torch.arange(8.0).view(2, 4))
    assert norms.grad("k").tolist() == [4.0, 5.0, 6.0, 7.0] and norms.grad("input").shape == (6,)
    with pytest.raises(ValueError, match="train all of them or none"):
        NormWeights(masters, {"k": 1.0}).grad("q", "k")


def test_only_the_trained_are_updated_each_by_its_factor() -> None:
    masters = {name: torch.ones(4) for name in ("a", "b", "frozen")}
    norms = NormWeights(masters, {"a": 1.0, "b": 2.0})
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.0, OptimizerStateMode.FP32, Rounding.FP32, 1024, 0)
    optimizer = AdamW({n: torch.nn.Parameter(masters[n]) for n in ("a", "b")}, settings)
    optimizer.begin_step(1, 1e-2)
    clip = RunningClip(["a", "b"], 0.0, CPU)
    for name in masters:
        norms.grad(name).fill_(3.0)
    norms.update(optimizer, clip, SideStream(CPU), SideStream(CPU))
    moved = {name: float(1 - master.detach()[0]) for name, master in masters.items()}
    assert moved == pytest.approx({"a": 1e-2, "b": 2e-2, "frozen": 0.0}, rel=1e-3)
    assert clip.norm() == pytest.approx((8 * 9) ** 0.5)
