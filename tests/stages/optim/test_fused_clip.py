"""The fused clipping against the plain one, on a GPU."""

from __future__ import annotations

import pytest
import torch

from stages.optim.clip import RunningClip
from stages.optim.factory import make_clip


@pytest.mark.gpu
def test_the_running_norm() -> None:
    names = ["a", "b", "c", "d", "e"]
    ours = make_clip(names, 1.0, torch.device("cuda"), 70000)
    plain = RunningClip(names, 1.0, torch.device("cpu"))
    assert type(ours).__name__ == "FusedClip"

    def same(a: torch.Tensor | None, b: torch.Tensor | None) -> None:
        assert a is not None and b is not None and float(a) == pytest.approx(float(b), rel=1e-5)

    for size in (70000, 5, 16384):
        for name in names[:3]:
            grad = torch.randn(size)
            same(ours.factor(name, grad.cuda()), plain.factor(name, grad))
        parts = torch.randn(3000).square()
        same(ours.factor("b", grad.cuda(), parts.cuda()), plain.factor("b", grad, parts))
        pair, pair_sizes = torch.randn(3000), {"d": 2900, "e": 100}
        same(ours.factor_many(pair_sizes, pair.cuda()), plain.factor_many(pair_sizes, pair))
    assert ours.norm() == pytest.approx(plain.norm(), rel=1e-5)
