"""NVFP4 in plain PyTorch: the reference for every device, computed in chunks that stay in the CPU's cache.

A weight [out, in] is cut into blocks of 16 columns. Each block has one scale; each value is an E2M1 code, 0
to 7 for 0, 0.5, 1, 1.5, 2, 3, 4, 6, with bit 3 as the sign (OCP Microscaling Formats 1.0, section 5.3.3).
Value = code × scale.

Rounding to E2M1 is to the nearest code, ties to the code with an even last bit, saturating at ±6; the sign of
zero is kept. That is what `ml_dtypes.float4_e2m1fn` does. Scales are E4M3FN bytes (`ScaleFormat.E4M3`), or
float16 or float32 values.

Rules for the scale of a block (`stages.contract.ScaleRule`):
- `amax`: the largest magnitude over 6, rounded to the scale's format. The plain encoder.
- `search`: the candidate with the smallest squared error; among equal errors the smallest scale.
  With E4M3 scales the four candidates are amax/6, the E4M3 values before and after it, and amax/4. Up to
  4 × 2^-9, where E4M3's steps are coarse and the value before hardly ever wins, the second value after amax/6
  takes its place. The largest code of a decoded block need not be 6 or 4: with amax/6 alone the block would
  get another scale and other values. A block with no code above 3 also fits half its scale, unless that half
  is not an E4M3 value. Therefore blocks of integer multiples of 2^-10, up to 90 × 2^-10, that fit no
  candidate exactly also try amax over 3, 2, 1.5, 1 and 0.5. Thus decode(encode(decode(b))) == decode(b) for
  all bytes b except NaN scales.
  With float scales the candidates are amax over 6, 4, 3, 2, 1.5, 1 and 0.5.
  Errors under E4M3 scales are compared in BF16 (`_bf16_error`), because a GPU computes two of them at once
  and arithmetic, not memory, bounds the search there. The error of the rounded values is within a
  hundred-thousandth of that of a search in float32.
- `fsharp`: max(amax/6, 1e-6) in float32 and the first nearest of the 16 values, as the user's F# fallback
  defines it. A narrower scale format rounds the scale first; the codes are the nearest under the stored
  scale.
An E4M3 scale is never smaller than 2^-9, its smallest positive value, so that a tiny block does not divide by
zero.

Equal values do not mean equal bytes: different bundles decode to the same numbers (an all-zero block has one
for every scale), so no function of the values alone returns all of them. `encode_onto` does, because it reads
the stored bundle. Scale bytes 0x7F and 0xFF are NaN, and readers refuse them. A negative scale is valid:
encoding again gives the positive scale with the signs in the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch

from stages.contract.recipe import ScaleRule

BLOCK = 16
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_SMALLEST = 2.0**-9
E4M3_LARGEST = 448.0
_E4M3_LAST = 0x7E
_ROUNDER = 1.5 * 2.0**23  # adding and subtracting it rounds a float32 to an integer, ties to even
_CPU_CHUNK = 1 << 16  # elements worked on at a time on a CPU: 256 KiB of float32


class ScaleFormat(Enum):
    """How scales are stored; the values are the dtypes."""

    E4M3 = torch.float8_e4m3fn
    FLOAT16 = torch.float16
    FLOAT32 = torch.float32


@dataclass(frozen=True)
class Bundle:
    """One encoded weight."""

    codes: torch.Tensor
    """uint8 [out, in/2]: two codes a byte, the even column in the low nibble."""
    scales: torch.Tensor
    """[out, in/16] in the dtype of a `ScaleFormat`."""


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Rounds float32 values to the E2M1 grid; see the module for ties, saturation and the sign of zero.

    Args:
        x: float32, any shape. NaN gives NaN.
    """
    # The spacing is half the power of two below |x|, and 0.5 under 1: exactly E2M1's steps 0.5, 1 and 2.
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    rounder = power.clamp_(1.0, 4.0).mul_(0.5 * _ROUNDER)
    return torch.copysign((x + rounder).sub_(rounder).clamp_(-6.0, 6.0), x)


def decode(bundle: Bundle, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values [out, in] of an encoded weight.

    Exact in BF16 for E4M3 scales: a code has 2 significant bits, a scale 4.
    """
    table = torch.tensor(
        [*E2M1_VALUES, *(-v for v in E2M1_VALUES)], dtype=torch.float32, device=bundle.codes.device
    )
    rows, half = bundle.codes.shape
    codes = torch.stack((bundle.codes & 15, bundle.codes >> 4), dim=-1).reshape(
        rows, half * 2 // BLOCK, BLOCK
    )
    values = table[codes.to(torch.int32)] * bundle.scales.float()[..., None]
    return values.reshape(rows, half * 2).to(dtype)


def encode(weight: torch.Tensor, rule: ScaleRule, scale_format: ScaleFormat = ScaleFormat.E4M3) -> Bundle:
    """Encodes a weight.

    Args:
        weight: [out, in], floating point, `in` a multiple of 16.

    Raises:
        ValueError: if the shape does not fit or a value is not finite.
    """
    check_shape(weight)
    rows, columns = weight.shape
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, columns // BLOCK, dtype=scale_format.value, device=weight.device)
    flat_codes, flat_scales = codes.view(-1, BLOCK // 2), scales.view(-1)
    for chunk, blocks in _chunks(weight):
        scale, rounded = _quantize(blocks, rule, scale_format)
        if not bool(torch.isfinite(blocks).all()):
            raise ValueError("weight holds NaN or infinity: NVFP4 has neither")
        flat_codes[chunk] = _pack(rounded)
        flat_scales[chunk] = scale.squeeze(1).to(scale_format.value)
    return Bundle(codes, scales)


def encode_onto(stored: Bundle, weight: torch.Tensor, rule: ScaleRule) -> Bundle:
    """Encodes a weight; blocks that did not change keep their stored bytes.

    `encode_onto(b, decode(b), rule)` is b for every bundle b.

    Args:
        stored: The bundle that `weight` was decoded from before training, on the same device. Its scales set
            the format.
        weight: [out, in]. A block is unchanged if it equals the stored values rounded to this dtype.
    """
    new = encode(weight, rule, ScaleFormat(stored.scales.dtype))
    same = (decode(stored, weight.dtype) == weight).view(len(weight), -1, BLOCK).all(dim=2)
    codes = torch.where(same.repeat_interleave(BLOCK // 2, dim=1), stored.codes, new.codes)
    # float8 has no `where`; float32 holds every value of every format.
    scales = torch.where(same, stored.scales.float(), new.scales.float()).to(new.scales.dtype)
    return Bundle(codes, scales)


def fake_quantize_reference(
    weight: torch.Tensor, rule: ScaleRule, dtype: torch.dtype, scale_format: ScaleFormat = ScaleFormat.E4M3
) -> torch.Tensor:
    """`decode(encode(weight))` without the codes: [out, in] in `dtype`. NaN stays NaN, seen in the loss."""
    check_shape(weight)
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    flat = out.view(-1, BLOCK)
    for chunk, blocks in _chunks(weight):
        scale, rounded = _quantize(blocks, rule, scale_format)
        flat[chunk] = rounded.mul_(scale).to(dtype)
    return out


def check_shape(weight: torch.Tensor) -> None:
    """Raises ValueError unless a weight is [out, in] with whole blocks of columns."""
    if weight.ndim != 2 or weight.shape[1] % BLOCK:
        raise ValueError(
            f"weight of shape {list(weight.shape)}: NVFP4 needs [out, in] with in a multiple of {BLOCK}"
        )


def _chunks(weight: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yields (slice of blocks, float32 blocks [n, 16])."""
    blocks = weight.detach().contiguous().view(-1, BLOCK)
    step = _CPU_CHUNK // BLOCK if weight.device.type == "cpu" else 1 << 24
    for start in range(0, len(blocks), step):
        chunk = slice(start, start + step)
        yield chunk, blocks[chunk].float()


def _quantize(
    blocks: torch.Tensor, rule: ScaleRule, scale_format: ScaleFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales [n, 1] float32, and E2M1 values [n, 16] float32, of blocks [n, 16]."""
    amax = blocks.abs().amax(dim=1, keepdim=True)
    if rule is ScaleRule.FSHARP:
        scale = _to_scale((amax / 6).clamp_(min=1e-6), scale_format)
        return scale, _nearest_first(blocks / scale)
    scale = (
        _to_scale(amax / 6, scale_format) if rule is ScaleRule.AMAX else _search(blocks, amax, scale_format)
    )
    return scale, round_e2m1(blocks / scale)


def _nearest_first(y: torch.Tensor) -> torch.Tensor:
    """The first nearest of the 16 values in code order: ties go towards zero, and zero is never negative."""
    magnitude = y.abs()
    index = torch.bucketize(
        magnitude, magnitude.new_tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]), right=False
    )
    value = magnitude.new_tensor(E2M1_VALUES)[index]
    return torch.where(value > 0, torch.copysign(value, y), value)


def _to_scale(value: torch.Tensor, scale_format: ScaleFormat) -> torch.Tensor:
    """Rounds to the scale's format, as float32, never to 0 or past its largest value."""
    if scale_format is ScaleFormat.E4M3:
        return value.clamp(E4M3_SMALLEST, E4M3_LARGEST).to(torch.float8_e4m3fn).float()
    low, high = (
        (2.0**-24, 65504.0)
        if scale_format is ScaleFormat.FLOAT16
        else (2.0**-126, torch.finfo(torch.float32).max)
    )
    return value.clamp(low, high).to(scale_format.value).float()


def _search(blocks: torch.Tensor, amax: torch.Tensor, scale_format: ScaleFormat) -> torch.Tensor:
    # Columns as rows: sums over a block then run along memory. Signs do not matter to the error.
    magnitudes, amax = blocks.t().contiguous().abs_(), amax.view(-1)
    if scale_format is not ScaleFormat.E4M3:
        return _smallest_error(magnitudes, _float_candidates(amax, scale_format), _float_error)[0][:, None]
    best, error = _smallest_error(magnitudes, _e4m3_candidates(amax), _bf16_error)
    odd = ((error > 0) & (amax <= 90 / 1024) & _whole(amax)).nonzero().view(-1)
    odd = odd[_whole(magnitudes[:, odd]).all(dim=0)]
    if len(odd):
        more = [_to_scale(amax[odd] / largest, scale_format) for largest in (3.0, 2.0, 1.5, 1.0, 0.5)]
        best[odd], _ = _smallest_error(magnitudes[:, odd], [best[odd], *more], _bf16_error)
    return best[:, None]


def _whole(x: torch.Tensor) -> torch.Tensor:
    """Whether values are integer multiples of 2^-10."""
    return (x * 1024).frac_() == 0


def _smallest_error(
    magnitudes: torch.Tensor,
    candidates: Iterable[torch.Tensor],
    measure: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale [n] with the smallest error for each of the blocks [16, n], and that error.

    Args:
        candidates: Scales [n]; among equal errors the smallest scale wins.
        measure: Returns the errors [n] of blocks under scales.
    """
    best = error = torch.zeros(0)
    for scale in candidates:
        found = measure(magnitudes, scale)
        if len(error) == 0:
            best, error = scale, found
            continue
        better = (found < error) | ((found == error) & (scale < best))
        best, error = torch.where(better, scale, best), torch.minimum(found, error)
    return best, error


def _difference(magnitudes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rounding errors of float32 magnitudes [16, n]: `round_e2m1` in place, without signs."""
    y = magnitudes / scale
    power = torch.bitwise_and(y.view(torch.int32), 0x7F800000).view(torch.float32)
    power.clamp_(1.0, 4.0).mul_(0.5 * _ROUNDER)
    return y.add_(power).sub_(power).clamp_(max=6.0).mul_(scale).sub_(magnitudes)


def _float_error(magnitudes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return _sum_pairs(_difference(magnitudes, scale).square_())


def _bf16_error(magnitudes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rounds every square and sum to BF16, except the last sum, of even and odd columns."""
    evens, odds = _sum_pairs(_difference(magnitudes, scale).bfloat16().square_().view(8, 2, -1)).float()
    return evens + odds


def _sum_pairs(x: torch.Tensor) -> torch.Tensor:
    """Sums [2^k, ...] over the first axis, neighbours first.

    The order is fixed, so that every device finds the same smallest error.
    """
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def _e4m3_candidates(amax: torch.Tensor) -> Iterator[torch.Tensor]:
    # Positive E4M3 bytes are ordered like their values: neighbours are one apart. Up to 7, they are multiples
    # of the smallest.
    middle = _to_scale(amax / 6, ScaleFormat.E4M3).to(torch.float8_e4m3fn).view(torch.uint8).to(torch.int16)
    for byte in (torch.where(middle <= 4, middle + 2, middle - 1), middle, middle + 1):
        yield byte.clamp(1, _E4M3_LAST).to(torch.uint8).view(torch.float8_e4m3fn).float()
    yield _to_scale(amax / 4, ScaleFormat.E4M3)


def _float_candidates(amax: torch.Tensor, scale_format: ScaleFormat) -> Iterator[torch.Tensor]:
    for largest in (6, 4, 3, 2, 1.5, 1.0, 0.5):
        scale = _to_scale(amax / largest, scale_format)
        yield scale
        if scale_format is ScaleFormat.FLOAT32 and largest in (6, 3, 1.5):
            # A float32 scale times 3 was rounded, so dividing again may miss it by one unit in the last
            # place.
            yield _to_scale(torch.nextafter(scale, scale.new_tensor(0.0)), scale_format)
            yield _to_scale(torch.nextafter(scale, scale.new_tensor(torch.inf)), scale_format)


def _pack(rounded: torch.Tensor) -> torch.Tensor:
    """E2M1 values [n, 16] to bytes [n, 8]."""
    magnitude = rounded.abs()
    index = torch.minimum(torch.minimum(magnitude * 2, magnitude + 2), magnitude / 2 + 4).to(torch.uint8)
    codes = index | (torch.signbit(rounded).to(torch.uint8) << 3)
    return codes[:, 0::2] | (codes[:, 1::2] << 4)
