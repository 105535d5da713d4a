"""`stages.optim.clip.RunningClip` in one launch a gradient, which a CUDA graph can replay."""

from __future__ import annotations

import torch

from stages.optim import clip_kernels
from stages.optim.clip import RunningClip

_PER_PROGRAM = 16384  # elements
_BLOCK = 2048


class FusedClip(RunningClip):
    """See `RunningClip`.

    Args:
        largest: Most elements of one gradient.
    """

    def __init__(self, names: list[str], max_norm: float, device: torch.device, largest: int) -> None:
        super().__init__(names, max_norm, device)
        self._partial = torch.zeros(-(-largest // _PER_PROGRAM), device=device)
        self._done_count = torch.zeros((), dtype=torch.int32, device=device)
        # One factor for each name, and one for all gradients of `factor_many`.
        self._factors = torch.ones(len(names) + 1, device=device)
        self._ranges: torch.Tensor | None = None

    def factor(
        self, name: str, grad: torch.Tensor, square_sums: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """See `RunningClip.factor`. The next gradient of the same name overwrites the returned tensor."""
        index = self._index[name]
        common = (self._squared_norms, index, len(self._index), self._max_norm, self._factors[index])
        if square_sums is not None:
            clip_kernels.add_square_sums[(1,)](square_sums, len(square_sums), *common, num_warps=8)
        else:
            programs = -(-grad.numel() // _PER_PROGRAM)
            clip_kernels.squared_norm[(programs,)](
                grad, self._partial, self._done_count, *common, grad.numel(),
                PER_PROGRAM=_PER_PROGRAM, BLOCK=_BLOCK, num_warps=8,
            )  # fmt: skip
        return self._factors[index] if self._max_norm else None

    def factor_many(self, sizes: dict[str, int], grads: torch.Tensor) -> torch.Tensor | None:
        """See `RunningClip.factor_many`. Every call must be given the same sizes."""
        if self._ranges is None:
            rows, first = [], 0
            for name, size in sizes.items():
                rows.append([self._index[name], first, size])
                first += size
            self._ranges = torch.tensor(rows, dtype=torch.int32, device=grads.device)
        clip_kernels.squared_norm_many[(len(sizes),)](
            grads, self._ranges, self._done_count, self._squared_norms, len(self._index), self._max_norm,
            self._factors[-1], BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        return self._factors[-1] if self._max_norm else None
