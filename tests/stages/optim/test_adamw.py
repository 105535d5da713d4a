"""The update against torch's AdamW, and how much of it survives each kind of master."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import OptimizerStateMode, Rounding, ScaleRule
from stages.nvfp4.fake_quantize import fake_quantize
from stages.optim.adamw import AdamW, AdamWSettings, round_master
from stages.optim.noise import random_bits

CPU = torch.device("cpu")


def _settings(**changes: object) -> AdamWSettings:
    values = {
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "state_mode": OptimizerStateMode.FP32,
        "rounding": Rounding.FP32,
        "step_chunk_rows": 1024,
        "seed": 0,
    }
    return AdamWSettings(**(values | changes))  # type: ignore[arg-type]


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _step(optimizer: AdamW, master: torch.Tensor, grad: torch.Tensor, step: int, lr: float) -> None:
    optimizer.begin_step(step, lr)
    optimizer.update("w", master, grad, 1.0, None)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_float32_states_and_masters_are_torchs_adamw(weight_decay: float) -> None:
    ours = torch.nn.Parameter(_normal(40, 48) * 0.02)
    theirs = torch.nn.Parameter(ours.detach().clone())
    peer = torch.optim.AdamW([theirs], lr=1e-3, weight_decay=weight_decay)
    optimizer = AdamW({"w": ours}, _settings(weight_decay=weight_decay))
    for step in range(1, 51):
        grad = _normal(40, 48, seed=step)
        theirs.grad = grad.clone()
        peer.step()
        _step(optimizer, ours.data, grad, step, 1e-3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("mode", list(OptimizerStateMode))
def test_the_chunk_size_does_not_change_a_bit(mode: OptimizerStateMode) -> None:
    results = []
    for rows in (1, 7, 1024):
        master = torch.nn.Parameter((_normal(70, 48) * 0.02).bfloat16())
        optimizer = AdamW(
            {"w": master}, _settings(state_mode=mode, rounding=Rounding.STOCHASTIC, step_chunk_rows=rows)
        )
        for step in range(1, 6):
            _step(optimizer, master.data, _normal(70, 48, seed=step), step, 1e-4)
        results.append(master.detach().clone())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_eight_bit_states_follow_float32_states() -> None:
    finals = {}
    for mode in OptimizerStateMode:
        master = torch.nn.Parameter(_normal(64, 64) * 0.02)
        optimizer = AdamW({"w": master}, _settings(state_mode=mode))
        target = _normal(64, 64, seed=5) * 0.02
        for step in range(1, 201):
            noise = _normal(64, 64, seed=step) * 0.01
            _step(optimizer, master.data, master.detach() - target + noise, step, 1e-3)
        finals[mode] = (master.detach() - target).square().mean().sqrt().item()
    assert finals[OptimizerStateMode.INT8] < 1.15 * finals[OptimizerStateMode.FP32] < 0.004


def test_a_thousand_heavy_tailed_steps_stay_finite_and_bounded() -> None:
    master = torch.nn.Parameter(torch.zeros(4, 256).bfloat16())
    optimizer = AdamW(
        {"w": master}, _settings(state_mode=OptimizerStateMode.INT8, rounding=Rounding.STOCHASTIC)
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 1001):
        grad = torch.empty(4, 256).cauchy_(generator=generator) * 10 ** (
            torch.rand(4, 256, generator=generator) * 6 - 3
        )
        before = master.detach().float()
        _step(optimizer, master.data, grad, step, 1e-3)
        moved = (master.detach().float() - before).abs().max()
        # |m| / sqrt(v) of Adam itself is at most (1 - beta1) / sqrt(1 - beta2) = 3.2; 8-bit rounding may add
        # its own factor.
        assert torch.isfinite(master).all() and moved < 1e-3 * 3.2 * 4
    assert master.abs().max() < 1.0


TABLE = {  # rate → share that survives with 4-bit masters, BF16 nearest, BF16 stochastic
    1e-5: (0.00, 0.19, 1.00),
    2e-5: (0.00, 0.37, 1.00),
    1e-4: (0.00, 1.00, 1.00),
    3e-4: (0.00, 0.93, 1.00),
    1e-3: (0.06, 0.99, 1.00),
}


@pytest.mark.parametrize("lr", list(TABLE))
def test_effective_update_ratio_by_kind_of_master(lr: float) -> None:
    """2^20 normal weights of std 0.02, one Adam step: below 1e-3 a 4-bit master loses it all, BF16 to nearest
    most of it at 1e-5.
    """
    weight = (_normal(1024, 1024) * 0.02).bfloat16()
    grad = _normal(1024, 1024, seed=1)
    measured = []
    start = fake_quantize(weight, ScaleRule.AMAX, torch.float32)
    change = -lr * grad.sign()  # Adam's first step
    four_bit = fake_quantize(start + change, ScaleRule.SEARCH, torch.float32) - start
    measured.append((torch.dot(four_bit.view(-1), change.view(-1)) / change.square().sum()).item())
    for rounding in (Rounding.NEAREST, Rounding.STOCHASTIC):
        master = torch.nn.Parameter(weight.clone())
        optimizer = AdamW({"w": master}, _settings(rounding=rounding, state_mode=OptimizerStateMode.INT8))
        _step(optimizer, master.data, grad, 1, lr)
        measured.append(optimizer.take_update_ratio())
    assert measured == pytest.approx(TABLE[lr], abs=0.015), (
        f"lr {lr}: 4-bit, nearest, stochastic = {measured}"
    )


def test_stochastic_rounding_is_unbiased_and_only_to_neighbours() -> None:
    value = torch.full((1 << 18,), 0.0203127)
    rounded = round_master(
        value, torch.bfloat16, Rounding.STOCHASTIC, random_bits(5, 0, 1 << 18, CPU)
    ).float()
    assert rounded.unique().numel() == 2
    assert rounded.mean().item() == pytest.approx(0.0203127, rel=1e-5)
    exact = torch.tensor([0.0, -1.5, 2.0**-100]).repeat(1000)
    assert torch.equal(
        round_master(exact, torch.bfloat16, Rounding.STOCHASTIC, random_bits(5, 0, 3000, CPU)).float(), exact
    )
