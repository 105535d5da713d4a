"""`stages.optim.adamw.AdamW` with the Triton kernels of `stages.optim.adamw_kernels`.

Temporaries stay in registers, so `step_chunk_rows` has no effect here. Everything that changes from step to
step is in device memory, so that a CUDA graph can replay the launches.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stages.contract.recipe import Rounding
from stages.optim import adamw_kernels
from stages.optim.adamw import AdamWSettings
from stages.optim.noise import hash32
from stages.optim.states import STATE_BLOCK, UPDATE_CHUNK, State8

_ROWS = UPDATE_CHUNK // STATE_BLOCK  # state blocks in one program of one warp: 16 elements a thread
# More registers allow fewer programs at a time; fewer registers spill.
_ONE_WARP = {"num_warps": 1, "maxnreg": 80}
_TRITON_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


class FusedAdamW:
    """`stages.optim.adamw.AdamW` for CUDA parameters and 8-bit states."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], settings: AdamWSettings) -> None:
        self.settings = settings
        self.states = {name: State8.zeros(p.numel(), p.device) for name, p in parameters.items()}
        self._index = {name: i for i, name in enumerate(parameters)}
        device = next(iter(parameters.values())).device
        self._first_program, total = {}, 0
        for name, parameter in parameters.items():
            self._first_program[name] = total
            total += triton.cdiv(parameter.numel(), UPDATE_CHUNK)
        self._ratio_sums = torch.zeros(total, 2, device=device)
        self._step_scalars = torch.ones(3, device=device)
        """Learning rate, 1 - beta1^step, sqrt(1 - beta2^step)."""
        self._step = torch.zeros(1, dtype=torch.int32, device=device)
        self._no_clip = torch.ones((), device=device)
        self._many: tuple[torch.Tensor, torch.Tensor] | None = None
        """Table and group factors of `update_many`."""

    def begin_step(self, step: int, lr: float) -> None:
        """See `AdamW.begin_step`."""
        s = self.settings
        scalars = torch.tensor([lr, 1 - s.beta1**step, (1 - s.beta2**step) ** 0.5])
        self._step_scalars.copy_(scalars, non_blocking=True)
        self._step.fill_(step)

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
        """See `AdamW.update`; here `first` is a multiple of `UPDATE_CHUNK`."""
        n, state, block = grad.numel(), self.states[name], first // STATE_BLOCK
        decay = self.settings.weight_decay if master.ndim > 1 else 0.0
        adamw_kernels.update_chunk[(triton.cdiv(n, UPDATE_CHUNK),)](
            grad.contiguous(), master.view(-1)[first:], state.exp_avg.view(torch.uint8)[first:],
            state.exp_avg_scale[block:], state.exp_avg_sq[first:], state.exp_avg_sq_scale[block:],
            self._step_scalars, self._step, self._no_clip if clip_factor is None else clip_factor,
            self._ratio_sums[self._first_program[name] + first // UPDATE_CHUNK :], hash32(self.settings.seed),
            self._index[name], float(group_lr_factor), decay, *self._betas(), first, n,
            **self._constants(master, clip_factor), DECAY=decay != 0, WHOLE=n % UPDATE_CHUNK == 0, ROWS=_ROWS,
            **_ONE_WARP,
        )  # fmt: skip

    @torch.no_grad()
    def update_many(
        self,
        masters: dict[str, torch.Tensor],
        grads: torch.Tensor,
        group_lr_factors: list[float],
        clip_factor: torch.Tensor | None,
    ) -> None:
        """See `AdamW.update_many`; here in one launch. Every call must be given the same tensors."""
        first = next(iter(masters.values()))
        largest = max(m.numel() for m in masters.values())
        if self._many is None:
            self._many = self._table(masters), torch.tensor(group_lr_factors, device=grads.device)
        adamw_kernels.update_many[(len(masters), triton.cdiv(largest, UPDATE_CHUNK))](
            *self._many, grads, self._step_scalars, self._step,
            self._no_clip if clip_factor is None else clip_factor, self._ratio_sums,
            hash32(self.settings.seed), *self._betas(), **self._constants(first, clip_factor),
            DTYPE=_TRITON_DTYPES[first.dtype], ROWS=_ROWS, **_ONE_WARP,
        )  # fmt: skip

    def _table(self, masters: dict[str, torch.Tensor]) -> torch.Tensor:
        """int64 [count, 9]; see `adamw_kernels.update_many`."""
        rows, first = [], 0
        for name, master in masters.items():
            state, n = self.states[name], master.numel()
            tensors = (master, state.exp_avg, state.exp_avg_scale, state.exp_avg_sq, state.exp_avg_sq_scale)
            addresses = [tensor.data_ptr() for tensor in tensors]
            rows.append([*addresses, n, first, self._first_program[name], self._index[name]])
            first += n
        return torch.tensor(rows, device=self._ratio_sums.device)

    def _betas(self) -> tuple[float, ...]:
        s = self.settings  # differences in float64: 1 - 0.999 in float32 is 5e-5 off
        return s.beta1, 1 - s.beta1, s.beta2**0.5, (1 - s.beta2) ** 0.5, s.eps

    def _constants(self, master: torch.Tensor, clip_factor: torch.Tensor | None) -> dict[str, Any]:
        stochastic = self.settings.rounding is Rounding.STOCHASTIC and master.dtype == torch.bfloat16
        return {"CLIP": clip_factor is not None, "STOCHASTIC": stochastic}

    def take_update_ratio(self) -> float:
        """See `AdamW.take_update_ratio`; here of the last step only."""
        applied, intended = self._ratio_sums.sum(dim=0, dtype=torch.float64).tolist()
        return applied / intended if intended else float("nan")
