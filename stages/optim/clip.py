"""Clipping by the global gradient norm, though updates run inside backward and the gradients never all exist.

The running norm combines this step's gradients so far with the last step's for those still to come. On a
steady run that is the global norm of Pascanu et al. 2013 (arXiv 1211.5063), part of it one step late; an
outlier is clipped from the tensor on in which it appears. No gradient waits for another, so only one layer's
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
        self._squared_norms = torch.zeros(len(names), device=device)
        self._max_norm = max_norm

    def factor(
        self, name: str, grad: torch.Tensor, square_sums: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The 0-dim clipping factor for this gradient, on the device; None if clipping is off.

        Args:
            square_sums: Sums of squares of the gradient's parts, if they are known.
        """
        if square_sums is None:
            self._record(name, grad)
        else:
            self._squared_norms[self._index[name]] = square_sums.sum()
        return self._current_factor()

    def factor_many(self, sizes: dict[str, int], grads: torch.Tensor) -> torch.Tensor | None:
        """`factor` for many small gradients together.

        Args:
            sizes: Elements of each, by name.
            grads: float32, one after the other.
        """
        for name, grad in zip(sizes, grads.split(list(sizes.values())), strict=True):
            self._record(name, grad)
        return self._current_factor()

    def _record(self, name: str, grad: torch.Tensor) -> None:
        norm = torch.linalg.vector_norm(grad, dtype=torch.float32)
        self._squared_norms[self._index[name]] = norm * norm

    def _current_factor(self) -> torch.Tensor | None:
        if not self._max_norm:
            return None
        return (self._max_norm / (self._squared_norms.sum().sqrt() + 1e-6)).clamp(max=1.0)

    def norm(self) -> float:
        """Global norm of the last gradients, before clipping."""
        return float(self._squared_norms.sum().sqrt())

    def tensors(self) -> dict[str, torch.Tensor]:
        """What lasts from step to step, to be saved and restored in place: float32 [names] squared norms."""
        return {"squares": self._squared_norms}
