"""AdamW on BF16 masters (Loshchilov and Hutter 2019, arXiv 1711.05101): the plain PyTorch path, for every
device.

The masters, not the 4-bit weights, are what is updated, and their rounding is stochastic: a step of 1e-5 is
smaller than half a BF16 step of a weight of 0.02, and rounding to nearest would lose most of it. Temporaries
are bounded by `step_chunk_rows` rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stages.contract import OptimizerStateMode, Rounding
from stages.optim.noise import key_of, random_bits
from stages.optim.states import STATE_BLOCK, State8, State32

if TYPE_CHECKING:
    from stages.optim.fused import FusedAdamW

_CACHED = 1 << 16  # elements worked on at a time on a CPU: the temporaries then stay in the cache


@dataclass(frozen=True)
class AdamWSettings:
    """The numbers of the update, the learning rate aside."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    state_mode: OptimizerStateMode
    rounding: Rounding
    step_chunk_rows: int
    seed: int


class AdamW:
    """The optimizer states of a set of parameters, updated one parameter at a time.

    Args:
        parameters: Masters by name, BF16 or float32.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter], settings: AdamWSettings) -> None:
        self.settings = settings
        kind = State8 if settings.state_mode is OptimizerStateMode.INT8 else State32
        self.states = {name: kind.zeros(p.numel(), p.device) for name, p in parameters.items()}
        self._index = {name: i for i, name in enumerate(parameters)}
        device = next(iter(parameters.values())).device
        self._survived = torch.zeros(2, dtype=torch.float64, device=device)
        self._step, self._lr = 0, 0.0

    def begin_step(self, step: int, lr: float) -> None:
        """Says which step (1 is the first) and which learning rate the updates that follow belong to."""
        self._step, self._lr = step, lr

    @torch.no_grad()
    def update(
        self,
        name: str,
        master: torch.Tensor,
        grad: torch.Tensor,
        group_lr_factor: float,
        clip: torch.Tensor | None,
        first: int = 0,
    ) -> None:
        """This step's update of one parameter or of a piece of it, in place.

        Args:
            master: BF16 or float32, any shape.
            grad: Of the same shape, or of the piece; any floating dtype.
            lr_factor: On the step's learning rate.
            clip: 0-dim factor on the gradient, or None.
            first: The flat index at which the piece begins, a multiple of the state block.
        """
        chunk = self._chunk(master)
        flat, flat_grad = master.view(-1), grad.reshape(-1)
        key = key_of(self.settings.seed, self._step, self._index[name])
        decay = self.settings.weight_decay if master.ndim > 1 else 0.0
        lr = self._lr * group_lr_factor
        for start in range(0, len(flat_grad), chunk):
            stop = min(len(flat_grad), start + chunk)
            g = flat_grad[start:stop].float()
            piece = slice(first + start, first + stop)
            self._update_piece(name, flat, piece, g if clip is None else g * clip, lr, decay, key)

    def update_vectors(
        self,
        masters: dict[str, torch.Tensor],
        grads: torch.Tensor,
        lr_factors: list[float],
        clip: torch.Tensor | None,
    ) -> None:
        """`update` of many parameters with one axis; `grads` has theirs one after the other, float32."""
        pieces = grads.split([m.numel() for m in masters.values()])
        for (name, master), grad, group_lr_factor in zip(masters.items(), pieces, lr_factors, strict=True):
            self.update(name, master, grad, group_lr_factor, clip)

    def _update_piece(
        self,
        name: str,
        flat: torch.Tensor,
        piece: slice,
        grad: torch.Tensor,
        lr: float,
        decay: float,
        key: int,
    ) -> None:
        s, state, step = self.settings, self.states[name], self._step
        average, root = state.load(piece)
        average.mul_(s.beta1).add_(grad, alpha=1 - s.beta1)
        root.square_().mul_(s.beta2).addcmul_(grad, grad, value=1 - s.beta2).sqrt_()
        correction = (1 - s.beta2**step) ** 0.5
        denominator = (root / correction).add_(s.eps)
        old = flat[piece].to(torch.float32, copy=True)
        change = (average / denominator).mul_(lr / (1 - s.beta1**step))
        if decay:
            change.add_(old, alpha=lr * decay)
        bits = random_bits(key, piece.start, len(old), flat.device)
        new = round_master(old - change, flat.dtype, s.rounding, bits)
        flat[piece] = new
        applied = old.sub_(new.float())
        self._survived[0] += torch.dot(applied, change)
        self._survived[1] += torch.dot(change, change)
        state.store(piece, average, root, bits)

    def _chunk(self, master: torch.Tensor) -> int:
        rows = self.settings.step_chunk_rows * (master[0].numel() if master.ndim > 1 else 1)
        elements = min(rows, _CACHED) if master.device.type == "cpu" else rows
        return max(STATE_BLOCK, elements // STATE_BLOCK * STATE_BLOCK)

    def take_update_ratio(self) -> float:
        """The effective update ratio since the last call: <applied, intended> / <intended, intended>; 1.0 is
        all of it.

        NaN if nothing was intended.
        """
        applied, intended = self._survived.tolist()
        self._survived.zero_()
        return applied / intended if intended else float("nan")


def round_master(
    value: torch.Tensor, dtype: torch.dtype, rounding: Rounding, bits: torch.Tensor
) -> torch.Tensor:
    """Rounds float32 values to the master's dtype.

    Args:
        value: float32 [k].
        dtype: `torch.float32` keeps the value as it is.
        bits: int32 [k]; the lower 16 decide stochastic rounding: the chance of rounding up is the fraction
            cut off.
    """
    if dtype != torch.bfloat16 or rounding is not Rounding.STOCHASTIC:
        return value.to(dtype)
    return ((value.view(torch.int32) + (bits & 0xFFFF)) & -65536).view(torch.float32).bfloat16()


def make_optimizer(parameters: dict[str, torch.nn.Parameter], settings: AdamWSettings) -> AdamW | FusedAdamW:
    """The fused update where the parameters lie on a CUDA device and the states take 8 bits, else the plain
    one.
    """
    on_cuda = all(p.is_cuda for p in parameters.values())
    if on_cuda and settings.state_mode is OptimizerStateMode.INT8:
        from stages.optim.fused import FusedAdamW  # Triton comes with CUDA builds only

        return FusedAdamW(parameters, settings)
    return AdamW(parameters, settings)
