"""The AdamW update as one Triton kernel: decode the 8-bit states, update, round stochastically, encode, in one pass over memory.

Computes what `stages.optim.adamw` computes; temporaries stay in registers, so `step_chunk_rows` has nothing to bound here. What changes
from step to step lies in device memory, so the same launches can be replayed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stages.contract import Rounding
from stages.optim.adamw import AdamWSettings
from stages.optim.noise import mix
from stages.optim.states import STATE_BLOCK, State8

_ROWS = 4  # state blocks of 256 in one program


@triton.jit
def _mix(x):
    """`stages.optim.noise.mix` on uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


# A whole number that happens to be 1 would become a constant of another kernel.
@triton.jit(do_not_specialize=["seed", "index", "n"])
def _update_kernel(
    master,
    grad,
    average_codes,
    average_scales,
    root_codes,
    root_scales,
    numbers,
    step,
    clip,
    survived,
    seed,
    index,
    lr_factor,
    decay,
    beta1,
    beta2,
    eps,
    n,
    CLIP: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * 256 + tl.arange(0, 256)[None, :]
    inside = at < n
    row_inside = row * 256 < n
    lr = tl.load(numbers) * lr_factor
    average_correction = tl.load(numbers + 1)
    root_correction = tl.load(numbers + 2)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    if CLIP:
        g = g * tl.load(clip)
    code = tl.load(average_codes + at, mask=inside, other=0).to(tl.float32)
    scale = tl.load(average_scales + row, mask=row_inside, other=0.0) / 16129.0
    m = code * tl.abs(code) * scale[:, None]
    code = tl.load(root_codes + at, mask=inside, other=0).to(tl.float32)
    scale = tl.load(root_scales + row, mask=row_inside, other=0.0) / 65025.0
    root = code * code * scale[:, None]
    m = beta1 * m + (1.0 - beta1) * g
    root = tl.sqrt(beta2 * root * root + (1.0 - beta2) * g * g)
    old = tl.load(master + at, mask=inside, other=0.0).to(tl.float32)
    change = m / (root / root_correction + eps) * (lr / average_correction) + old * (lr * decay)
    key = _mix(_mix(seed.to(tl.uint32) ^ tl.load(step).to(tl.uint32)) ^ index.to(tl.uint32))
    bits = _mix(at.to(tl.uint32) ^ key)
    new = old - change
    if STOCHASTIC:
        moved = new.to(tl.int32, bitcast=True) + (bits & 0xFFFF).to(tl.int32)
        new = (moved & -65536).to(tl.float32, bitcast=True)
    new = new.to(master.dtype.element_ty)
    tl.store(master + at, new, mask=inside)
    applied = old - new.to(tl.float32)
    change = tl.where(inside, change, 0.0)
    pair = survived + tl.program_id(0) * 2
    tl.store(pair, tl.sum(tl.sum(applied * change, 1), 0))
    tl.store(pair + 1, tl.sum(tl.sum(change * change, 1), 0))
    largest = tl.max(tl.abs(m), 1)
    code = tl.sqrt(tl.abs(m) / tl.maximum(largest, 1e-38)[:, None]) * 127.0 + 0.5
    code = tl.floor(code)
    tl.store(average_codes + at, tl.where(m < 0, -code, code).to(tl.int8), mask=inside)
    tl.store(average_scales + row, largest, mask=row_inside)
    largest = tl.max(root, 1)
    uniform = (bits >> 16).to(tl.float32) * (1.0 / 65536.0)
    code = tl.floor(tl.sqrt(root / tl.maximum(largest, 1e-38)[:, None]) * 255.0 + uniform)
    code = tl.maximum(tl.minimum(code, 255.0), tl.where(root > 0, 1.0, 0.0))
    tl.store(root_codes + at, code.to(tl.uint8), mask=inside)
    tl.store(root_scales + row, largest, mask=row_inside)


class FusedAdamW:
    """`stages.optim.adamw.AdamW` for CUDA parameters and 8-bit states."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], settings: AdamWSettings) -> None:
        self.settings = settings
        self.states = {name: State8.zeros(p.numel(), p.device) for name, p in parameters.items()}
        self._index = {name: i for i, name in enumerate(parameters)}
        device = next(iter(parameters.values())).device
        self._programs, total = {}, 0
        for name, parameter in parameters.items():
            self._programs[name] = (total, triton.cdiv(parameter.numel(), STATE_BLOCK * _ROWS))
            total += self._programs[name][1]
        self._survived = torch.zeros(total, 2, device=device)
        self._numbers = torch.ones(3, device=device)
        """Learning rate, 1 - beta1^step, sqrt(1 - beta2^step)."""
        self._step = torch.zeros(1, dtype=torch.int32, device=device)
        self._unclipped = torch.ones((), device=device)

    def begin_step(self, step: int, lr: float) -> None:
        """See `AdamW.begin_step`."""
        s = self.settings
        numbers = torch.tensor([lr, 1 - s.beta1**step, (1 - s.beta2**step) ** 0.5])
        self._numbers.copy_(numbers, non_blocking=True)
        self._step.fill_(step)

    @torch.no_grad()
    def update(self, name: str, master: torch.Tensor, grad: torch.Tensor, lr_factor: float, clip: torch.Tensor | None) -> None:
        """See `AdamW.update`."""
        s, state = self.settings, self.states[name]
        first, programs = self._programs[name]
        stochastic = s.rounding is Rounding.STOCHASTIC and master.dtype == torch.bfloat16
        _update_kernel[(programs,)](
            master,
            grad.contiguous(),
            state.exp_avg,
            state.exp_avg_scale,
            state.exp_avg_sq,
            state.exp_avg_sq_scale,
            self._numbers,
            self._step,
            self._unclipped if clip is None else clip,
            self._survived[first:],
            mix(s.seed),
            self._index[name],
            float(lr_factor),
            s.weight_decay if master.ndim > 1 else 0.0,
            s.beta1,
            s.beta2,
            s.eps,
            master.numel(),
            CLIP=clip is not None,
            STOCHASTIC=stochastic,
            ROWS=_ROWS,
            num_warps=4,
        )

    def take_update_ratio(self) -> float:
        """See `AdamW.take_update_ratio`; here of the last step only."""
        applied, intended = self._survived.double().sum(dim=0).tolist()
        return applied / intended if intended else float("nan")
