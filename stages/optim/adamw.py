"""AdamW on BF16 masters (Loshchilov and Hutter 2019, arXiv 1711.05101) in plain PyTorch, for every device.

The update changes the masters, not the 4-bit weights, and rounds them stochastically: an update of 1e-5 is
less than half a BF16 step of a weight of 0.02, and rounding to nearest would lose most of it. Temporaries are
bounded by `step_chunk_rows` rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stages.contract.recipe import OptimizerStateMode, Rounding
from stages.optim.noise import key_of, random_bits
from stages.optim.states import STATE_BLOCK, State8, State32

_CPU_CHUNK = 1 << 16  # elements at a time on a CPU: the temporaries then stay in the cache


@dataclass(frozen=True)
class AdamWSettings:
    """Hyperparameters of the update, except the learning rate."""

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
        self._ratio_sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._step, self._lr = 0, 0.0

    def begin_step(self, step: int, lr: float) -> None:
        """Sets the step (1 is the first) and the learning rate of the updates that follow."""
        self._step, self._lr = step, lr

    @torch.no_grad()
    def update(
        self,
        name: str,
        master: torch.Tensor,
        grad: torch.Tensor,
        group_lr_factor: float,
        clip_factor: torch.Tensor | None,
        first: int = 0,
    ) -> None:
        """This step's update of one parameter or of a chunk of it, in place.

        Args:
            master: BF16 or float32, any shape.
            grad: Gradient of the parameter, or of the chunk; any floating dtype.
            group_lr_factor: The parameter group's factor on the step's learning rate.
            clip_factor: 0-dim factor on the gradient, or None.
            first: Flat index at which the chunk begins, a multiple of `STATE_BLOCK`.
        """
        size = self._chunk_size(master)
        flat, flat_grad = master.view(-1), grad.reshape(-1)
        key = key_of(self.settings.seed, self._step, self._index[name])
        decay = self.settings.weight_decay if master.ndim > 1 else 0.0
        lr = self._lr * group_lr_factor
        for start in range(0, len(flat_grad), size):
            stop = min(len(flat_grad), start + size)
            g = flat_grad[start:stop].float()
            if clip_factor is not None:
                g = g * clip_factor
            self._update_chunk(name, flat, slice(first + start, first + stop), g, lr, decay, key)

    def update_many(
        self,
        masters: dict[str, torch.Tensor],
        grads: torch.Tensor,
        group_lr_factors: list[float],
        clip_factor: torch.Tensor | None,
    ) -> None:
        """`update` of many parameters with one axis; `grads` float32 has one gradient after the other."""
        split = grads.split([m.numel() for m in masters.values()])
        for (name, master), grad, factor in zip(masters.items(), split, group_lr_factors, strict=True):
            self.update(name, master, grad, factor, clip_factor)

    def _update_chunk(
        self,
        name: str,
        flat: torch.Tensor,
        chunk: slice,
        grad: torch.Tensor,
        lr: float,
        decay: float,
        key: int,
    ) -> None:
        s, state, step = self.settings, self.states[name], self._step
        exp_avg, root = state.load(chunk)
        exp_avg.mul_(s.beta1).add_(grad, alpha=1 - s.beta1)
        root.square_().mul_(s.beta2).addcmul_(grad, grad, value=1 - s.beta2).sqrt_()
        correction = (1 - s.beta2**step) ** 0.5
        denominator = (root / correction).add_(s.eps)
        old = flat[chunk].to(torch.float32, copy=True)
        change = (exp_avg / denominator).mul_(lr / (1 - s.beta1**step))
        if decay:
            change.add_(old, alpha=lr * decay)
        bits = random_bits(key, chunk.start, len(old), flat.device)
        new = round_master(old - change, flat.dtype, s.rounding, bits)
        flat[chunk] = new
        applied = old.sub_(new.float())
        self._ratio_sums[0] += torch.dot(applied, change)
        self._ratio_sums[1] += torch.dot(change, change)
        state.store(chunk, exp_avg, root, bits)

    def _chunk_size(self, master: torch.Tensor) -> int:
        rows = self.settings.step_chunk_rows * (master[0].numel() if master.ndim > 1 else 1)
        elements = min(rows, _CPU_CHUNK) if master.device.type == "cpu" else rows
        return max(STATE_BLOCK, elements // STATE_BLOCK * STATE_BLOCK)

    def take_update_ratio(self) -> float:
        """The effective update ratio since the last call: <applied, intended> / <intended, intended>.

        1.0 means that rounding lost nothing. NaN if no update was intended.
        """
        applied, intended = self._ratio_sums.tolist()
        self._ratio_sums.zero_()
        return applied / intended if intended else float("nan")


def round_master(
    value: torch.Tensor, dtype: torch.dtype, rounding: Rounding, bits: torch.Tensor
) -> torch.Tensor:
    """Rounds float32 values to the master's dtype.

    Args:
        value: float32 [k].
        dtype: `torch.float32` keeps the value as it is.
        bits: int32 [k]; stochastic rounding compares the lower 16 with the fraction that is cut off, which is
            the chance of rounding up.
    """
    if dtype != torch.bfloat16 or rounding is not Rounding.STOCHASTIC:
        return value.to(dtype)
    return ((value.view(torch.int32) + (bits & 0xFFFF)) & -65536).view(torch.float32).bfloat16()
