"""The norms' weights: their gradients are kept through the step, and they are updated together at its end.

There are four of them in a layer and together they are a twenty-thousandth of the model. Each by itself would
take two launches in the middle of the chain of large updates, which waits for nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stages.engine.streams import SideStream
from stages.optim.adamw import AdamW
from stages.optim.clip import RunningClip

if TYPE_CHECKING:
    from stages.optim.fused import FusedAdamW


class Vectors:
    """Weights with one axis, by name, in the order in which their gradients lie in memory.

    Args:
        masters: All of them.
        lr_factors: Of the trained ones.
    """

    def __init__(self, masters: dict[str, torch.Tensor], lr_factors: dict[str, float]) -> None:
        self.masters = masters
        self._trained = {name: master for name, master in masters.items() if name in lr_factors}
        self._sizes = {name: master.numel() for name, master in self._trained.items()}
        self._lr_factors = [lr_factors[name] for name in self._trained]
        self._places, first = {}, 0
        for name in [*self._trained, *(name for name in masters if name not in self._trained)]:
            self._places[name] = first
            first += masters[name].numel()
        self._grads = torch.zeros(first, device=next(iter(masters.values())).device)

    def grad(self, *names: str) -> torch.Tensor:
        """Where the gradient belongs: float32 [size], or [count, size] of neighbours of one size."""
        first, size = self._places[names[0]], self.masters[names[0]].numel()
        if [self._places[name] for name in names] != [first + i * size for i in range(len(names))]:
            raise ValueError(
                f"{', '.join(names)}: some are trained and some are not; train all of them or none"
            )
        out = self._grads[first : first + len(names) * size]
        return out if len(names) == 1 else out.view(len(names), size)

    def learn(
        self, optimizer: AdamW | FusedAdamW, clip: RunningClip, norms: SideStream, updates: SideStream
    ) -> None:
        """Updates the trained ones; belongs after the last gradient of a step."""
        if self._trained:
            grads = self._grads[: sum(self._sizes.values())]
            factor = norms.run(lambda: clip.vectors_factor(self._sizes, grads))
            updates.run_after(
                [norms.done()],
                lambda: optimizer.update_vectors(self._trained, grads, self._lr_factors, factor),
            )
