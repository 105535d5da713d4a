"""Which implementation a device and a state mode lead to."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import OptimizerStateMode, Rounding
from stages.optim.adamw import AdamW, AdamWSettings
from stages.optim.clip import RunningClip
from stages.optim.factory import make_clip, make_optimizer
from stages.optim.states import State8, State32

SETTINGS = {
    mode: AdamWSettings(0.9, 0.999, 1e-8, 0.0, mode, Rounding.STOCHASTIC, 1024, 0)
    for mode in OptimizerStateMode
}


@pytest.mark.parametrize("mode", list(OptimizerStateMode))
def test_the_plain_update_on_a_cpu(mode: OptimizerStateMode) -> None:
    optimizer = make_optimizer({"a": torch.nn.Parameter(torch.zeros(4, 4))}, SETTINGS[mode])
    assert type(optimizer) is AdamW
    assert type(optimizer.states["a"]) is (State8 if mode is OptimizerStateMode.INT8 else State32)
    assert type(make_clip(["a"], 1.0, torch.device("cpu"), 16)) is RunningClip


@pytest.mark.gpu
def test_the_fused_update_on_a_gpu_with_8_bit_states() -> None:
    parameters = {"a": torch.nn.Parameter(torch.zeros(4, 4, device="cuda"))}
    kinds = {mode: type(make_optimizer(parameters, SETTINGS[mode])).__name__ for mode in OptimizerStateMode}
    assert kinds == {OptimizerStateMode.INT8: "FusedAdamW", OptimizerStateMode.FP32: "AdamW"}
