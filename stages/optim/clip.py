"""Clipping by the global gradient norm where no moment has all gradients: the update runs inside backward.

The norm is that of the gradients seen so far in this step, and of the last step's for those still to come. On
a steady run that is the global norm of Pascanu et al. 2013 (arXiv 1211.5063), one step late for a part of it;
an outlier is clipped from the tensor on in which it appears. Gradients wait for nothing, so only one layer's
exist at a time.
"""

from __future__ import annotations

import torch


class RunningClip:
    """Keeps the squared norm of each parameter's last gradient.

    Args:
        names: All trainable parameters.
        max_norm: Global norm above which gradients are scaled down; 0 only measures.
    """

    def __init__(self, names: list[str], max_norm: float, device: torch.device) -> None:
        self._index = {name: i for i, name in enumerate(names)}
        self._squares = torch.zeros(len(names), device=device)
        self._max_norm = max_norm

    def factor(self, name: str, grad: torch.Tensor, sums: torch.Tensor | None = None) -> torch.Tensor | None:
        """The 0-dim factor for this gradient, without waiting for the device; None if clipping is off.

        Args:
            sums: Sums of squares of the gradient's parts, if they are known.
        """
        if sums is None:
            self._keep(name, grad)
        else:
            self._squares[self._index[name]] = sums.sum()
        return self._current()

    def vectors_factor(self, sizes: dict[str, int], grads: torch.Tensor) -> torch.Tensor | None:
        """`factor` for many small gradients together.

        Args:
            sizes: Elements of each, by name.
            grads: float32, one after the other.
        """
        for name, grad in zip(sizes, grads.split(list(sizes.values())), strict=True):
            self._keep(name, grad)
        return self._current()

    def _keep(self, name: str, grad: torch.Tensor) -> None:
        norm = torch.linalg.vector_norm(grad, dtype=torch.float32)
        self._squares[self._index[name]] = norm * norm

    def _current(self) -> torch.Tensor | None:
        if not self._max_norm:
            return None
        return (self._max_norm / (self._squares.sum().sqrt() + 1e-6)).clamp(max=1.0)

    def norm(self) -> float:
        """Global norm of the last gradients, before clipping."""
        return float(self._squares.sum().sqrt())

    def tensors(self) -> dict[str, torch.Tensor]:
        """What lasts from step to step, for saving and for restoring in place: float32 [parameters] squared
        norms.
        """
        return {"squares": self._squares}
