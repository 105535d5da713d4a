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
_WARPS = 2  # 16 elements a thread
CHUNK = STATE_BLOCK * _ROWS
"""A piece of a parameter that is updated by itself begins at a multiple of so many elements."""

SMALLEST = tl.constexpr(1.2e-38)  # a constant below float32's smallest normal number would make float64 of all that it touches

# Four bytes become float32 and back by way of 2^23 + byte, whose low bits are the byte: the conversion unit is the narrowest there is.
_UNSIGNED = tl.constexpr("""
prmt.b32 $0, $4, 0x4B000000, 0x7650; prmt.b32 $1, $4, 0x4B000000, 0x7651;
prmt.b32 $2, $4, 0x4B000000, 0x7652; prmt.b32 $3, $4, 0x4B000000, 0x7653;
""")
_SIGNED = tl.constexpr("""{ .reg .b32 t; xor.b32 t, $4, 0x80808080;
prmt.b32 $0, t, 0x4B000000, 0x7650; prmt.b32 $1, t, 0x4B000000, 0x7651;
prmt.b32 $2, t, 0x4B000000, 0x7652; prmt.b32 $3, t, 0x4B000000, 0x7653; }
""")
_BF16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;")
_PACK = tl.constexpr("""{ .reg .b32 s, t; prmt.b32 s, $1, $2, 0x0040; prmt.b32 t, $3, $4, 0x0040; prmt.b32 $0, s, t, 0x5410; }""")


@triton.jit
def _mix(x):
    """`stages.optim.noise.mix` on uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _reciprocal(x):
    """1 / x to an ulp, for x that is neither tiny nor huge."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _wide(x):
    """float32 of any floating dtype."""
    if x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(_BF16, "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2)
    else:
        return x.to(tl.float32)


@triton.jit
def _low_byte(x):
    """The low byte of float32 values as uint8."""
    return tl.inline_asm_elementwise(_PACK, "=r,f,f,f,f", [x], dtype=tl.uint8, is_pure=True, pack=4)


# A whole number that happens to be 1 would become a constant of another kernel.
@triton.jit(do_not_specialize=["seed", "index", "n", "first"])
def _update_kernel(
    master, grad, average_codes, average_scales, root_codes, root_scales, numbers, step, clip, survived, seed, index, first,
    lr_factor, decay, beta1, new1, beta2_root, new2_root, eps, n, CLIP: tl.constexpr, STOCHASTIC: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """`new1` is 1 - beta1; `beta2_root` and `new2_root` are the square roots of beta2 and 1 - beta2."""
    # One 64-bit base for the program, 32-bit offsets inside it.
    row = tl.program_id(0) * ROWS
    base = row.to(tl.int64) * 256
    rows, columns = tl.arange(0, ROWS), tl.arange(0, 256)[None, :]
    at = rows[:, None] * 256 + columns
    inside = (at < n - base) | WHOLE
    row_inside = (rows * 256 < n - base) | WHOLE
    lr = tl.load(numbers) * lr_factor
    rate = lr / tl.load(numbers + 1)
    root_correction = 1.0 / tl.load(numbers + 2)
    if CLIP:
        factor = tl.load(clip)
        new1 *= factor
        new2_root *= factor
    g = _wide(tl.load(grad + base + at, mask=inside, other=0.0))
    # Decay goes into the scale of a block.
    code = tl.load(average_codes + base + at, mask=inside, other=0)
    code = tl.inline_asm_elementwise(_SIGNED, "=f,=f,=f,=f,r", [code], dtype=tl.float32, is_pure=True, pack=4) - 8388736.0
    scale = tl.load(average_scales + row + rows, mask=row_inside, other=0.0) * (beta1 / 16129.0)
    m = code * tl.abs(code) * scale[:, None] + new1 * g
    code = tl.load(root_codes + base + at, mask=inside, other=0)
    code = tl.inline_asm_elementwise(_UNSIGNED, "=f,=f,=f,=f,r", [code], dtype=tl.float32, is_pure=True, pack=4) - 8388608.0
    scale = tl.load(root_scales + row + rows, mask=row_inside, other=0.0) * (beta2_root / 65025.0)
    root = code * code * scale[:, None]
    g = g * new2_root
    root = tl.sqrt(root * root + g * g)
    old = _wide(tl.load(master + base + at, mask=inside, other=0.0))
    change = m * rate * _reciprocal(root * root_correction + eps) + old * (lr * decay)
    # `_mix` of (element ^ key), whose first shift sees nothing of the low 16 bits: it is made once a block.
    key = _mix(_mix(seed.to(tl.uint32) ^ tl.load(step).to(tl.uint32)) ^ index.to(tl.uint32))
    start = (first.to(tl.uint32) + (row + rows).to(tl.uint32) * 256) ^ key
    bits = ((start ^ (start >> 16))[:, None] ^ columns.to(tl.uint32)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    new = old - change
    if STOCHASTIC:
        moved = new.to(tl.int32, bitcast=True) + ((bits ^ (bits >> 16)) & 0xFFFF).to(tl.int32)
        new = (moved & -65536).to(tl.float32, bitcast=True)
    stored = new.to(master.dtype.element_ty)
    tl.store(master + base + at, stored, mask=inside)
    if not WHOLE:
        change = tl.where(inside, change, 0.0)
    applied = old - (new if STOCHASTIC else stored.to(tl.float32))
    pair = survived + tl.program_id(0) * 2
    tl.store(pair, tl.sum(tl.sum(applied * change, 1), 0))
    tl.store(pair + 1, tl.sum(tl.sum(change * change, 1), 0))
    # sqrt(|m| / M) * 127 with the division once a block; 1.5 * 2^23 makes two's complement of negative codes.
    magnitude = tl.abs(m)
    largest = tl.max(magnitude, 1)
    shrink = _reciprocal(tl.maximum(largest, SMALLEST))
    code = tl.sqrt(magnitude * shrink[:, None]).to(tl.int32, bitcast=True) | (m.to(tl.int32, bitcast=True) & -2147483648)
    tl.store(average_codes + base + at, _low_byte(code.to(tl.float32, bitcast=True) * 127.0 + 12582912.0), mask=inside)
    tl.store(average_scales + row + rows, largest, mask=row_inside)
    largest = tl.max(root, 1)
    shrink = _reciprocal(tl.maximum(largest, SMALLEST))
    # 1 + the upper 16 bits over 2^16; less 1.5, rounding to nearest becomes rounding down after adding them.
    uniform = (((bits >> 9) & 0x7FFF80) | 0x3F800000).to(tl.float32, bitcast=True)
    value = tl.sqrt(root * shrink[:, None]) * 255.0 + uniform
    value = tl.minimum(tl.maximum(value, tl.where(root > 0, 2.5, 1.5)), 256.5)
    tl.store(root_codes + base + at, _low_byte(value + 8388606.5), mask=inside)
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
            s.beta2**0.5,
            (1 - s.beta2) ** 0.5,
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
