"""The weights of the norms: their gradients wait for the end of the step, and one launch updates all of them.

There are four in a layer, together a twenty-thousandth of the model. Updated one by one, each would put two
launches into the middle of the chain of large updates, which waits for nothing else.
"""

from __future__ import annotations

import torch

from stages.engine.streams import SideStream
from stages.optim.clip import RunningClip
from stages.optim.factory import Optimizer


class NormWeights:
    """Weights with one axis, by name. Their gradients lie in one tensor: the trained ones first, in order.

    Args:
        masters: All of them.
        group_lr_factors: Of the trained ones.
    """

    def __init__(self, masters: dict[str, torch.Tensor], group_lr_factors: dict[str, float]) -> None:
        self.masters = masters
        self._trained = {name: master for name, master in masters.items() if name in group_lr_factors}
        self._sizes = {name: master.numel() for name, master in self._trained.items()}
        self._group_lr_factors = [group_lr_factors[name] for name in self._trained]
        self._offsets, offset = {}, 0
        for name in [*self._trained, *(name for name in masters if name not in self._trained)]:
            self._offsets[name] = offset
            offset += masters[name].numel()
        self._grads = torch.zeros(offset, device=next(iter(masters.values())).device)

    def grad(self, *names: str) -> torch.Tensor:
        """Memory for the gradient: float32 [size], or [count, size] of neighbours of one size.

        Raises:
            ValueError: if the names are no neighbours, because only some of them are trained.
        """
        first, size = self._offsets[names[0]], self.masters[names[0]].numel()
        if [self._offsets[name] for name in names] != [first + i * size for i in range(len(names))]:
            raise ValueError(
                f"{', '.join(names)}: some are trained and some are not; train all of them or none"
            )
        out = self._grads[first : first + len(names) * size]
        return out if len(names) == 1 else out.view(len(names), size)

    def update(self, optimizer: Optimizer, clip: RunningClip, norms: SideStream, updates: SideStream) -> None:
        """Updates the trained ones, after the last gradient of a step."""
        if self._trained:
            grads = self._grads[: sum(self._sizes.values())]
            clip_factor = norms.run(lambda: clip.factor_many(self._sizes, grads))
            updates.run_after(
                [norms.record()],
                lambda: optimizer.update_many(self._trained, grads, self._group_lr_factors, clip_factor),
            )
