"""The running global norm."""

from __future__ import annotations

import pytest
import torch

from stages.optim.clip import RunningClip

CPU = torch.device("cpu")


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_running_clip_is_the_global_norm_on_a_steady_run() -> None:
    grads = {f"p{i}": _normal(10, 10, seed=i) * (i + 1) for i in range(4)}
    total = sum(float(g.square().sum()) for g in grads.values()) ** 0.5
    clip = RunningClip(list(grads), 1.0, CPU)
    for _ in range(2):
        factors = [float(clip.factor(name, g)) for name, g in grads.items()]
    assert factors == pytest.approx([1.0 / total] * 4, rel=1e-4)
    assert clip.norm() == pytest.approx(total, rel=1e-5)
    outlier = clip.factor("p0", grads["p0"] * 1e6)
    assert float(outlier) * 1e6 * float(grads["p0"].norm()) <= 1.0 + 1e-3


def test_clipping_switched_off_still_measures() -> None:
    clip = RunningClip(["a"], 0.0, CPU)
    assert clip.factor("a", torch.tensor([3.0, 4.0])) is None and clip.norm() == pytest.approx(5.0)


def test_many_small_gradients_and_known_sums_count_like_single_ones() -> None:
    grads = {name: _normal(size, seed=size) for name, size in {"a": 5, "b": 7}.items()}
    single, many, summed = (RunningClip(["a", "b"], 1.0, CPU) for _ in range(3))
    for name, grad in grads.items():
        expected = single.factor(name, grad)
        got = summed.factor(name, grad, grad.square().view(1, -1).sum(dim=0))
        assert float(got) == pytest.approx(float(expected))
    together = many.factor_many({name: len(g) for name, g in grads.items()}, torch.cat(list(grads.values())))
    assert float(together) == pytest.approx(float(expected))
    assert many.norm() == pytest.approx(single.norm())
