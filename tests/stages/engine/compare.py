"""The GPU against the CPU on the same values."""

from __future__ import annotations

from collections.abc import Callable

import torch


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-2) -> None:
    ours, expected = ours.detach().float().cpu(), expected.detach().float()
    assert torch.isfinite(ours).all()
    assert float((ours - expected).norm() / expected.norm().clamp(min=1e-9)) < tolerance


def on_both(work: Callable[..., object], *tensors: object) -> None:
    """Runs `work` on the CPU in float32 and on the GPU in BF16 on the same BF16 values."""

    def moved(x: object, wide: bool) -> object:
        if isinstance(x, tuple):
            return tuple(moved(y, wide) for y in x)
        return x if not isinstance(x, torch.Tensor) else x.float() if wide else x.cuda()

    expected = work(*(moved(t, True) for t in tensors))
    ours = work(*(moved(t, False) for t in tensors))
    for a, b in zip(ours, expected, strict=True) if isinstance(ours, tuple) else [(ours, expected)]:  # type: ignore[arg-type]
        close(a, b)
