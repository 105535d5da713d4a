"""`stages.optim.adamw.AdamW` in the kernels of `stages.optim.kernels`.

Temporaries stay in registers, so `step_chunk_rows` has nothing to bound here. What changes from step to step
lies in device memory, so the same launches can be replayed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stages.contract import Rounding
from stages.optim import kernels
from stages.optim.adamw import AdamWSettings
from stages.optim.noise import mix
from stages.optim.states import STATE_BLOCK, State8

_ROWS = 2  # state blocks in one program, of one warp: 16 elements a thread
_ONE_WARP = {
    "num_warps": 1,
    "maxnreg": 80,
}  # with more registers there are fewer programs at a time, with fewer they spill
_KINDS = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
CHUNK = STATE_BLOCK * _ROWS
"""A piece of a parameter that is updated by itself begins at a multiple of so many elements."""


class FusedAdamW:
    """`stages.optim.adamw.AdamW` for CUDA parameters and 8-bit states."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], settings: AdamWSettings) -> None:
        self.settings = settings
        self.states = {name: State8.zeros(p.numel(), p.device) for name, p in parameters.items()}
        self._index = {name: i for i, name in enumerate(parameters)}
        device = next(iter(parameters.values())).device
        self._programs, total = {}, 0
        for name, parameter in parameters.items():
            self._programs[name] = total
            total += triton.cdiv(parameter.numel(), CHUNK)
        self._survived = torch.zeros(total, 2, device=device)
        self._numbers = torch.ones(3, device=device)
        """Learning rate, 1 - beta1^step, sqrt(1 - beta2^step)."""
        self._step = torch.zeros(1, dtype=torch.int32, device=device)
        self._unclipped = torch.ones((), device=device)
        self._vectors: tuple[torch.Tensor, torch.Tensor] | None = None

    def begin_step(self, step: int, lr: float) -> None:
        """See `AdamW.begin_step`."""
        s = self.settings
        numbers = torch.tensor([lr, 1 - s.beta1**step, (1 - s.beta2**step) ** 0.5])
        self._numbers.copy_(numbers, non_blocking=True)
        self._step.fill_(step)

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
        """See `AdamW.update`; here `first` is a multiple of `CHUNK`."""
        n = grad.numel()
        kernels.update[(triton.cdiv(n, CHUNK),)](
            grad.contiguous(), *self._arguments(name, master, group_lr_factor, clip, first), first, n, **self._constants(master, clip),
            DECAY=self.settings.weight_decay != 0 and master.ndim > 1, WHOLE=n % CHUNK == 0, ROWS=_ROWS, **_ONE_WARP,
        )  # fmt: skip

    @torch.no_grad()
    def update_vectors(
        self,
        masters: dict[str, torch.Tensor],
        grads: torch.Tensor,
        lr_factors: list[float],
        clip: torch.Tensor | None,
    ) -> None:
        """See `AdamW.update_vectors`; here in one launch. Every call must be given the same tensors."""
        first = next(iter(masters.values()))
        largest = max(m.numel() for m in masters.values())
        if self._vectors is None:
            self._vectors = self._table(masters), torch.tensor(lr_factors, device=grads.device)
        s = self.settings
        kernels.update_vectors[(len(masters), triton.cdiv(largest, CHUNK))](
            *self._vectors, grads, self._numbers, self._step, self._unclipped if clip is None else clip, self._survived, mix(s.seed),
            *self._betas(), **self._constants(first, clip), KIND=_KINDS[first.dtype], ROWS=_ROWS, **_ONE_WARP,
        )  # fmt: skip

    def _table(self, masters: dict[str, torch.Tensor]) -> torch.Tensor:
        """int64 [count, 9]; see `kernels.update_vectors`."""
        rows, first = [], 0
        for name, master in masters.items():
            state = self.states[name]
            tensors = (master, state.exp_avg, state.exp_avg_scale, state.exp_avg_sq, state.exp_avg_sq_scale)
            rows.append(
                [
                    *(t.data_ptr() for t in tensors),
                    master.numel(),
                    first,
                    self._programs[name],
                    self._index[name],
                ]
            )
            first += master.numel()
        return torch.tensor(rows, device=self._survived.device)

    def _arguments(
        self, name: str, master: torch.Tensor, group_lr_factor: float, clip: torch.Tensor | None, first: int
    ) -> tuple[Any, ...]:
        s, state, block = self.settings, self.states[name], first // STATE_BLOCK
        return (
            master.view(-1)[first:],
            state.exp_avg.view(torch.uint8)[first:],
            state.exp_avg_scale[block:],
            state.exp_avg_sq[first:],
            state.exp_avg_sq_scale[block:],
            self._numbers,
            self._step,
            self._unclipped if clip is None else clip,
            self._survived[self._programs[name] + first // CHUNK :],
            mix(s.seed),
            self._index[name],
            float(group_lr_factor),
            s.weight_decay if master.ndim > 1 else 0.0,
            *self._betas(),
        )

    def _betas(self) -> tuple[float, ...]:
        s = self.settings  # differences in float64: 1 - 0.999 in float32 is 5e-5 off
        return s.beta1, 1 - s.beta1, s.beta2**0.5, (1 - s.beta2) ** 0.5, s.eps

    def _constants(self, master: torch.Tensor, clip: torch.Tensor | None) -> dict[str, bool]:
        stochastic = self.settings.rounding is Rounding.STOCHASTIC and master.dtype == torch.bfloat16
        return {"CLIP": clip is not None, "STOCHASTIC": stochastic}

    def update_sums(self) -> torch.Tensor:
        """float64 [2] on the device: <applied, intended> and <intended, intended> of the last step."""
        return self._survived.sum(dim=0, dtype=torch.float64)

    def take_update_ratio(self) -> float:
        """See `AdamW.take_update_ratio`; here of the last step only."""
        applied, intended = self.update_sums().tolist()
        return applied / intended if intended else float("nan")
