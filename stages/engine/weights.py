"""Weights of matrix products: rounded to NVFP4 into buffers that all layers share, updated the moment their
gradient exists.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from stages.contract import ScaleRule
from stages.engine import ops
from stages.engine.streams import Gradients, Weights
from stages.nvfp4.codec import BLOCK, ScaleFormat, fake_quantize
from stages.nvfp4.linear import Linear

Update = Callable[[str, torch.Tensor, torch.Tensor, int, torch.Tensor | None], None]
"""(name, master, gradient, first, sums): updates the master's elements from `first` on; see
`stages.optim.adamw.AdamW.update`. `sums` are those of squares of the gradient's parts, if they are known.
"""


class Rounded:
    """One master and the scales of its NVFP4 rounding, which are searched for once a step.

    The masters are read again for the backward pass: with known scales that takes as long as a copy, and a
    byte for 16 weights in memory where stored codes would take nine.

    Args:
        master: [out, in].
    """

    def __init__(self, master: torch.Tensor, rule: ScaleRule | None, scale_format: ScaleFormat) -> None:
        self.master = master
        self._rule, self._format = rule, scale_format
        words = self.master.is_cuda and self.master.dtype == torch.bfloat16
        one_pass = (
            words and self._rule in (ScaleRule.AMAX, ScaleRule.SEARCH) and self._format is ScaleFormat.E4M3
        )
        blocks = self.master.numel() // BLOCK
        self._scales = torch.empty(blocks, dtype=torch.uint8, device=self.master.device) if one_pass else None
        self._known: set[int] = set()

    def write(self, out: torch.Tensor, first: int = 0) -> None:
        """Writes the effective weight of the rows from `first` on, as many as `out` [rows, in] has."""
        rows = slice(first, first + len(out))
        master = self.master[rows]
        if self._rule is None:
            out.copy_(master)
        elif self._scales is None:
            out.copy_(fake_quantize(master, self._rule, out.dtype, self._format))
        else:
            from stages.nvfp4.fused import round_into

            per_row = master.shape[1] // BLOCK
            scales = self._scales[rows.start * per_row : rows.stop * per_row]
            round_into(master, out, scales, rule=self._rule, known=first in self._known)
            self._known.add(first)

    def changed(self, first: int = 0) -> None:
        """Says that the rows from `first` on were updated."""
        self._known.discard(first)


class Group:
    """Linear layers with one input, multiplied as one. Their masters become parts of one matrix.

    Args:
        linears: Layers by parameter name, of one input width.
        trained: Names of the parameters that are updated.
    """

    def __init__(
        self,
        linears: dict[str, Linear],
        trained: set[str],
        weights: Weights,
        gradients: Gradients,
        update: Update,
    ) -> None:
        first = next(iter(linears.values()))
        whole = (
            first.weight.data
            if len(linears) == 1
            else torch.cat([linear.weight.data for linear in linears.values()])
        )
        self._masters, start = {}, 0
        for name, linear in linears.items():
            linear.weight.data = self._masters[name] = whole[start : start + len(linear.weight)]
            start += len(linear.weight)
        self._rounded = Rounded(whole, first.rule, first.scale_format)
        self._trained = trained & set(linears)
        self._weights, self._gradients, self._update = weights, gradients, update
        self._name = next(iter(linears))

    def _weight(self) -> torch.Tensor:
        rows, columns = self._rounded.master.shape
        return self._weights.take(self._name, rows, columns, self._rounded.write)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] to [n, sum of out]."""
        return F.linear(x, self._weight())

    def add_forward(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual` [n, sum of out] + `forward`."""
        return residual + F.linear(x, self._weight())

    def input_grad(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradient of the input [n, in] from that of the output. Belongs before `learn`."""
        return grad @ self._weight()

    def learn(self, grad: torch.Tensor, x: torch.Tensor) -> None:
        """Updates the masters from the gradient of the output and the input [n, in].

        One product for each master: its update may begin while the next one is made.
        """
        start = 0
        for name, master in self._masters.items():
            stop = start + len(master)
            if name in self._trained:
                with self._gradients.use(*master.shape) as out:
                    self._update(name, master, out, 0, ops.weight_grad(grad[:, start:stop], x, out))
                self._rounded.changed()
            start = stop

    def backward(self, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`input_grad`, then `learn`."""
        back = self.input_grad(grad)
        self.learn(grad, x)
        return back
