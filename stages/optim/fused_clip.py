"""`stages.optim.clip.RunningClip` in one launch a gradient, which a CUDA graph can replay."""

from __future__ import annotations

import torch

from stages.optim.clip import RunningClip

_EACH = 16384  # elements summed by one program
_BLOCK = 2048


class FusedClip(RunningClip):
    """See `RunningClip`.

    Args:
        largest: Most elements of one gradient.
    """

    def __init__(self, names: list[str], max_norm: float, device: torch.device, largest: int) -> None:
        super().__init__(names, max_norm, device)
        self._partial = torch.zeros(-(-largest // _EACH), device=device)
        self._arrived = torch.zeros((), dtype=torch.int32, device=device)
        self._factors = torch.ones(
            len(names) + 1, device=device
        )  # one for each name, and one for the vectors together
        self._places: torch.Tensor | None = None

    def factor(self, name: str, grad: torch.Tensor, sums: torch.Tensor | None = None) -> torch.Tensor | None:
        """See `RunningClip.factor`. The tensor that is returned is the name's own: it holds until its next
        gradient.
        """
        from stages.engine import kernels_head  # Triton comes with CUDA builds only

        index = self._index[name]
        common = (self._squares, index, len(self._index), self._max_norm, self._factors[index])
        if sums is not None:
            kernels_head.add_squares[(1,)](sums, len(sums), *common, num_warps=8)
        else:
            programs = -(-grad.numel() // _EACH)
            kernels_head.squares[(programs,)](
                grad, self._partial, self._arrived, *common, grad.numel(), EACH=_EACH, BLOCK=_BLOCK, num_warps=8
            )  # fmt: skip
        return self._factors[index] if self._max_norm else None

    def vectors_factor(self, sizes: dict[str, int], grads: torch.Tensor) -> torch.Tensor | None:
        """See `RunningClip.vectors_factor`. Every call must be given the same sizes."""
        from stages.engine import kernels_head

        if self._places is None:
            rows, first = [], 0
            for name, size in sizes.items():
                rows.append([self._index[name], first, size])
                first += size
            self._places = torch.tensor(rows, dtype=torch.int32, device=grads.device)
        kernels_head.vector_squares[(len(sizes),)](
            grads, self._places, self._arrived, self._squares, len(self._index), self._max_norm, self._factors[-1],
            BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        return self._factors[-1] if self._max_norm else None

    def norm_square(self) -> torch.Tensor:
        """0-dim on the device: the square of `norm`."""
        return self._squares.sum()
