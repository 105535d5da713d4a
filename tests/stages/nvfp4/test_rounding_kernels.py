"""The Triton rounding: the facts that it rests on, its launch, and on a GPU its results."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import encode, round_e2m1
from stages.nvfp4.fake_quantize import fake_quantize
from tests.stages.kernel_launches import check_launches

SCALES = torch.arange(1, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
MAGNITUDES = torch.arange(0, 0x7F80, dtype=torch.int16).view(torch.bfloat16).float()[:, None]


def _in_halves(quotient: torch.Tensor) -> torch.Tensor:
    """Codes from float16 quotients, with the Triton kernel's operations."""
    step = quotient.clamp(min=1) * 512
    return ((quotient + step) - step).float()


@pytest.mark.parametrize("last_place", [-1, 0, 1])
def test_half_precision_finds_a_nearest_code(last_place: int) -> None:
    """What the Triton search rests on, for every BF16 value over every scale, with a reciprocal that is off
    in its last place.
    """
    inverse = (1 / SCALES).view(torch.int32).add(last_place).view(torch.float32)
    quotient = MAGNITUDES.half() * (inverse * 1.00035).half()
    expected = (round_e2m1(MAGNITUDES / SCALES) * SCALES - MAGNITUDES).abs()
    off = _in_halves(quotient.clamp(max=6)) * SCALES - MAGNITUDES
    assert torch.equal(off.abs(), expected)
    within = MAGNITUDES / SCALES < 6.5  # where the kernel leaves the clamp out
    assert torch.equal((_in_halves(quotient) * SCALES - MAGNITUDES).abs()[within], expected[within])
    within = MAGNITUDES / SCALES < 13
    assert torch.equal(off.bfloat16().float()[within], off[within]), "what a value is off by is a BF16 value"


@pytest.mark.parametrize("last_place", [-1, 0, 1])
def test_two_halves_of_a_reciprocal_find_the_code(last_place: int) -> None:
    inverse = (1 / SCALES).view(torch.int32).add(last_place).view(torch.float32)
    high = inverse.half()
    low = (inverse - high.float()).half()
    sizes = MAGNITUDES.half()
    # float64 holds the product and the sum; only infinity times 0 would be wrong, and no low part that meets
    # it is 0.
    quotient = (sizes.double() * high.double() + (sizes * low).double()).half()
    expected = round_e2m1(MAGNITUDES / SCALES)
    met = (sizes.isfinite()).expand_as(expected) | (SCALES >= 416)
    assert torch.equal(_in_halves(quotient.clamp(max=6))[met], expected[met])


def test_every_launch_binds_every_parameter_once() -> None:
    path = "stages/nvfp4/rounding_kernels.py"
    assert check_launches(path, [path], {}) == 1


def _weight(std: float, dtype: torch.dtype) -> torch.Tensor:
    weight = (torch.randn(512, 256, generator=torch.Generator().manual_seed(1)) * std).to(dtype)
    weight[0, :16] = 0
    # Blocks that were decoded: their values lie on the grid, and halfway between two codes of the other
    # candidates.
    weight[256:] = fake_quantize(weight[256:], ScaleRule.AMAX, torch.float32).to(dtype)
    return weight


@pytest.mark.gpu
@pytest.mark.parametrize("std", [1e-4, 0.005, 0.01, 0.02, 0.05, 0.2, 1.0, 300.0])
@pytest.mark.parametrize("rule", [ScaleRule.AMAX, ScaleRule.SEARCH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_the_references_bit_for_bit(std: float, rule: ScaleRule, dtype: torch.dtype) -> None:
    weight = _weight(std, dtype)
    on_gpu = fake_quantize(weight.cuda(), rule, torch.float32).cpu()
    assert torch.equal(on_gpu.view(torch.int32), fake_quantize(weight, rule, torch.float32).view(torch.int32))


def _blocks_of_every_size(kind: int) -> torch.Tensor:
    """BF16 [n, 16] whose largest values are all that occur between 2^-14 and 30,000, 64 blocks of each.

    The kinds are: even, normal, on a grid of eighths of the largest, and whole multiples of 2^-10 (up to 90
    of them, or a few times what each block has in common).
    """
    g = torch.Generator().manual_seed(kind)
    bits = torch.arange(0x3880, 0x46EA, dtype=torch.int16).repeat(64)
    largest = bits.view(torch.bfloat16).float()[:, None]
    shape = (len(bits), 16)
    if kind == 3:
        common = torch.randint(1, 16, (len(bits), 1), generator=g) * torch.randint(
            0, 2, (len(bits), 1), generator=g
        )
        some = torch.randint(-6, 7, shape, generator=g) * common
        values = torch.where(common > 0, some, torch.randint(-90, 91, shape, generator=g))
        return values.float().mul_(2.0**-10).bfloat16()
    values = (
        (torch.rand(shape, generator=g) * 2 - 1)
        if kind != 1
        else (torch.randn(shape, generator=g) / 2.5).clamp_(-1, 1)
    )
    if kind == 2:
        values = (values * 8).round() / 8
    values *= largest
    values[torch.arange(len(bits)), torch.randint(0, 16, (len(bits),), generator=g)] = largest[:, 0]
    return values.bfloat16()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", range(4))
def test_every_size_of_block_finds_the_references_scale(kind: int) -> None:
    """The kernel finds codes in half precision, and looks at half a block before it tries more candidates."""
    weight = _blocks_of_every_size(kind)
    on_gpu = fake_quantize(weight.cuda(), ScaleRule.SEARCH, torch.float32).cpu()
    expected = fake_quantize(weight, ScaleRule.SEARCH, torch.float32)
    wrong = (on_gpu.view(torch.int32) != expected.view(torch.int32)).any(dim=1)
    assert not wrong.any(), (int(wrong.sum()), weight[wrong][:1], on_gpu[wrong][:1], expected[wrong][:1])


@pytest.mark.gpu
def test_nan_stays_for_the_loss_to_show_it() -> None:
    weight = torch.randn(4, 64, device="cuda").bfloat16()
    weight[2, 5] = float("nan")
    for rule in (ScaleRule.AMAX, ScaleRule.SEARCH):
        assert fake_quantize(weight, rule, torch.bfloat16).isnan()[2, 5]


@pytest.mark.gpu
@pytest.mark.parametrize("std", [1e-4, 0.02, 1.0, 300.0])
@pytest.mark.parametrize("rule", [ScaleRule.AMAX, ScaleRule.SEARCH])
def test_kept_scales_are_the_encoders_and_give_the_same_values(std: float, rule: ScaleRule) -> None:
    from stages.nvfp4.rounding_kernels import round_into

    weight = _weight(std, torch.bfloat16)
    weight = torch.cat((weight, weight[:3]))  # no multiple of a program's blocks
    on_gpu, scales = weight.cuda(), torch.full((weight.numel() // 16,), 255, dtype=torch.uint8, device="cuda")
    first, second = torch.full_like(on_gpu, float("nan")), torch.full_like(on_gpu, float("nan"))
    round_into(on_gpu, first, scales, rule=rule)
    assert torch.equal(scales.cpu(), encode(weight, rule).scales.view(torch.uint8).flatten())
    round_into(on_gpu, second, scales, rule=rule, reuse_scales=True)
    expected = fake_quantize(weight, rule, torch.bfloat16).view(torch.int16)
    assert torch.equal(first.cpu().view(torch.int16), expected) and torch.equal(
        second.cpu().view(torch.int16), expected
    )
