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
_WARPS = 4  # 8 elements a thread: 16 bytes of BF16
CHUNK = STATE_BLOCK * _ROWS
"""A piece of a parameter that is updated by itself begins at a multiple of so many elements."""

SMALLEST = tl.constexpr(1.2e-38)  # a constant below float32's smallest normal number would make float64 of all that it touches


@triton.jit
def _mix(x):
    """`stages.optim.noise.mix` on uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


# A whole number that happens to be 1 would become a constant of another kernel.
@triton.jit(do_not_specialize=["seed", "index", "n", "first"])
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
    first,
    lr_factor,
    decay,
    beta1,
    new1,
    beta2,
    new2,
    eps,
    n,
    CLIP: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
):
    # One 64-bit base for the program, 32-bit offsets inside it.
    row = tl.program_id(0) * ROWS
    base = row.to(tl.int64) * 256
    rows = tl.arange(0, ROWS)
    at = rows[:, None] * 256 + tl.arange(0, 256)[None, :]
    inside = (at < n - base) | WHOLE
    row_inside = (rows * 256 < n - base) | WHOLE
    lr = tl.load(numbers) * lr_factor
    average_correction = tl.load(numbers + 1)
    root_correction = tl.load(numbers + 2)
    g = tl.load(grad + base + at, mask=inside, other=0.0).to(tl.float32)
    if CLIP:
        g = g * tl.load(clip)
    # Bytes become float32 and back by way of 2^23 + byte, whose low bits are the byte: the conversion unit is the narrowest there is.
    code = tl.load(average_codes + base + at, mask=inside, other=0).to(tl.int32)
    code = (code ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0  # two's complement
    scale = tl.load(average_scales + row + rows, mask=row_inside, other=0.0) / 16129.0
    m = code * tl.abs(code) * scale[:, None]
    code = tl.load(root_codes + base + at, mask=inside, other=0).to(tl.int32)
    code = (code | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    scale = tl.load(root_scales + row + rows, mask=row_inside, other=0.0) / 65025.0
    root = code * code * scale[:, None]
    m = beta1 * m + new1 * g
    root = tl.sqrt(beta2 * root * root + new2 * g * g)
    old = tl.load(master + base + at, mask=inside, other=0.0).to(tl.float32)
    change = m * (lr / average_correction) / (root * (1.0 / root_correction) + eps) + old * (lr * decay)
    key = _mix(_mix(seed.to(tl.uint32) ^ tl.load(step).to(tl.uint32)) ^ index.to(tl.uint32))
    bits = _mix((at.to(tl.uint32) + (first.to(tl.uint32) + row.to(tl.uint32) * 256)) ^ key)
    new = old - change
    if STOCHASTIC:
        moved = new.to(tl.int32, bitcast=True) + (bits & 0xFFFF).to(tl.int32)
        new = (moved & -65536).to(tl.float32, bitcast=True)
    stored = new.to(master.dtype.element_ty)
    tl.store(master + base + at, stored, mask=inside)
    if not WHOLE:
        change = tl.where(inside, change, 0.0)
    applied = old - (new if STOCHASTIC else stored.to(tl.float32))
    pair = survived + tl.program_id(0) * 2
    tl.store(pair, tl.sum(tl.sum(applied * change, 1), 0))
    tl.store(pair + 1, tl.sum(tl.sum(change * change, 1), 0))
    # sqrt(|m| / M) * 127 with the division once a block.
    magnitude = tl.abs(m)
    largest = tl.max(magnitude, 1)
    shrink = 1.0 / tl.maximum(largest, SMALLEST)
    code = (tl.sqrt(magnitude * shrink[:, None]) * 127.0 + 8388608.0).to(tl.int32, bitcast=True)
    tl.store(average_codes + base + at, tl.where(m < 0, -code, code).to(tl.uint8), mask=inside)
    tl.store(average_scales + row + rows, largest, mask=row_inside)
    largest = tl.max(root, 1)
    shrink = 1.0 / tl.maximum(largest, SMALLEST)
    # 1 + the upper 16 bits over 2^16; less 1.5, rounding to nearest becomes rounding down after adding them.
    uniform = (((bits >> 9) & 0x7FFF80) | 0x3F800000).to(tl.float32, bitcast=True) - 1.5
    value = tl.sqrt(root * shrink[:, None]) * 255.0 + uniform
    value = tl.minimum(tl.maximum(value, tl.where(root > 0, 1.0, 0.0)), 255.0)
    code = (value + 8388608.0).to(tl.int32, bitcast=True)
    tl.store(root_codes + base + at, code.to(tl.uint8), mask=inside)
    tl.store(root_scales + row + rows, largest, mask=row_inside)


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

    def begin_step(self, step: int, lr: float) -> None:
        """See `AdamW.begin_step`."""
        s = self.settings
        numbers = torch.tensor([lr, 1 - s.beta1**step, (1 - s.beta2**step) ** 0.5])
        self._numbers.copy_(numbers, non_blocking=True)
        self._step.fill_(step)

    @torch.no_grad()
    def update(
        self, name: str, master: torch.Tensor, grad: torch.Tensor, lr_factor: float, clip: torch.Tensor | None, first: int = 0
    ) -> None:
        """See `AdamW.update`; here `first` is a multiple of `CHUNK`."""
        s, state, count = self.settings, self.states[name], grad.numel()
        stochastic = s.rounding is Rounding.STOCHASTIC and master.dtype == torch.bfloat16
        block = first // STATE_BLOCK
        _update_kernel[(triton.cdiv(count, CHUNK),)](
            master.view(-1)[first:],
            grad.contiguous(),
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
            first,
            float(lr_factor),
            s.weight_decay if master.ndim > 1 else 0.0,
            s.beta1,
            1 - s.beta1,  # in float64: 1 - 0.999 in float32 is 5e-5 off
            s.beta2,
            1 - s.beta2,
            s.eps,
            count,
            CLIP=clip is not None,
            STOCHASTIC=stochastic,
            WHOLE=count % CHUNK == 0,
            ROWS=_ROWS,
            num_warps=_WARPS,
        )

    def update_sums(self) -> torch.Tensor:
        """float64 [2] on the device: <applied, intended> and <intended, intended> of the last step."""
        return self._survived.sum(dim=0, dtype=torch.float64)

    def take_update_ratio(self) -> float:
        """See `AdamW.take_update_ratio`; here of the last step only."""
        applied, intended = self.update_sums().tolist()
        return applied / intended if intended else float("nan")
