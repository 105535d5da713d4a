"""Weights of matrix products: rounded to NVFP4 into a shared buffer, updated once their gradient exists."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from stages.contract.recipe import ScaleRule
from stages.engine import ops
from stages.engine.streams import GradientBuffer, WeightPrefetcher
from stages.nvfp4.codec import BLOCK, ScaleFormat
from stages.nvfp4.fake_quantize import fake_quantize, has_kernel
from stages.nvfp4.linear import Linear

UpdateFunction = Callable[[str, torch.Tensor, torch.Tensor, int, torch.Tensor | None], None]
"""(name, master, gradient, first, square_sums): updates the master's elements from `first` on; see
`stages.optim.adamw.AdamW.update`. `square_sums` are the sums of squares of the gradient's parts, if known.
"""


class QuantizedWeight:
    """A master and the scales of its NVFP4 rounding, which are searched for once a step.

    The backward pass rounds the master again: with known scales that is as fast as a copy, and takes one byte
    for 16 weights, where stored codes would take nine.

    Args:
        master: [out, in].
    """

    def __init__(self, master: torch.Tensor, rule: ScaleRule | None, scale_format: ScaleFormat) -> None:
        self.master = master
        self._rule, self._format = rule, scale_format
        self._scales: torch.Tensor | None = None
        if has_kernel(master, rule, scale_format):
            self._scales = torch.empty(master.numel() // BLOCK, dtype=torch.uint8, device=master.device)
        self._valid_scales: set[int] = set()

    def write(self, out: torch.Tensor, first: int = 0) -> None:
        """Writes the effective weight of the rows from `first` on, as many as `out` [rows, in] has."""
        master = self.master[first : first + len(out)]
        if self._rule is None:
            out.copy_(master)
        elif self._scales is None:
            out.copy_(fake_quantize(master, self._rule, out.dtype, self._format))
        else:
            from stages.nvfp4.rounding_kernels import round_into  # Triton comes with CUDA builds only

            per_row = master.shape[1] // BLOCK
            scales = self._scales[first * per_row : (first + len(out)) * per_row]
            round_into(master, out, scales, rule=self._rule, reuse_scales=first in self._valid_scales)
            self._valid_scales.add(first)

    def invalidate_scales(self, first: int = 0) -> None:
        """Belongs after an update of the rows from `first` on."""
        self._valid_scales.discard(first)


class FusedProjection:
    """Linear layers with the same input, multiplied as one. Their masters become parts of one matrix.

    Args:
        linears: Layers by parameter name, of one input width.
        trained: Names of the parameters that are updated.
    """

    def __init__(
        self,
        linears: dict[str, Linear],
        trained: set[str],
        weights: WeightPrefetcher,
        gradients: GradientBuffer,
        update: UpdateFunction,
    ) -> None:
        first = next(iter(linears.values()))
        fused = first.weight.data
        if len(linears) > 1:
            fused = torch.cat([linear.weight.data for linear in linears.values()])
        self._masters, start = {}, 0
        for name, linear in linears.items():
            linear.weight.data = self._masters[name] = fused[start : start + len(linear.weight)]
            start += len(linear.weight)
        self._quantized = QuantizedWeight(fused, first.rule, first.scale_format)
        self._trained = trained & set(linears)
        self._weights, self._gradients, self._update = weights, gradients, update
        self._key = next(iter(linears))

    def _weight(self) -> torch.Tensor:
        rows, columns = self._quantized.master.shape
        return self._weights.get(self._key, rows, columns, self._quantized.write)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] to [n, sum of out]."""
        return F.linear(x, self._weight())

    def input_grad(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradient of the input [n, in] from that of the output. Belongs before `update`."""
        return grad @ self._weight()

    def update(self, grad: torch.Tensor, x: torch.Tensor) -> None:
        """Updates the masters from the gradient of the output and the input [n, in].

        One product for each master, so that its update runs while the next one is computed.
        """
        start = 0
        for name, master in self._masters.items():
            stop = start + len(master)
            if name in self._trained:
                with self._gradients.use(*master.shape) as out:
                    self._update(name, master, out, 0, ops.weight_grad(grad[:, start:stop], x, out))
                self._quantized.invalidate_scales()
            start = stop

    def backward(self, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`input_grad`, then `update`."""
        input_grad = self.input_grad(grad)
        self.update(grad, x)
        return input_grad
