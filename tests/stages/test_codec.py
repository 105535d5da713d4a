"""NVFP4 against ml_dtypes and torch's float8, the fixed point of encode after decode, and the error of each rule."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract import ScaleRule
from stages.nvfp4.codec import E2M1_VALUES, Bundle, ScaleFormat, decode, encode, fake_quantize, round_e2m1

BOUNDARIES = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 1e30])


def _normal(std: float, rows: int = 2048, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(7)) * std


def test_rounding_is_that_of_ml_dtypes() -> None:
    near = [BOUNDARIES, torch.nextafter(BOUNDARIES, torch.tensor(torch.inf)), torch.nextafter(BOUNDARIES, torch.tensor(-1.0))]
    x = torch.cat([*near, torch.randn(1_000_000, generator=torch.Generator().manual_seed(1)) * 2.5])
    x = torch.cat([x, -x])
    ours, theirs = round_e2m1(x).numpy(), x.numpy().astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))


def test_every_byte_decodes_as_ml_dtypes_and_torch_say() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(32, 8)
    scales = torch.arange(1, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    nibbles = torch.stack((codes & 15, codes >> 4), -1).view(32, 16).numpy()
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    for scale in scales.float():
        bundle = Bundle(codes, torch.full((32, 1), float(scale)).to(torch.float8_e4m3fn))
        np.testing.assert_array_equal(decode(bundle).numpy(), values * float(scale))
        assert torch.equal(decode(bundle, torch.bfloat16).float(), decode(bundle)), "BF16 must hold every value exactly"


def test_low_nibble_is_the_even_column() -> None:
    weight = torch.zeros(1, 16)
    weight[0, 0], weight[0, 1] = 6.0, -0.5
    bundle = encode(weight, ScaleRule.AMAX)
    assert bundle.codes[0, 0].item() == 0x97 and bundle.scales.float().item() == 1.0


def test_scale_bytes_read_as_numbers_would_be_another_weight() -> None:
    """The bug that made every output token 0: E4M3 bytes taken as plain numbers."""
    bundle = encode(_normal(0.02), ScaleRule.SEARCH)
    as_numbers = Bundle(bundle.codes, bundle.scales.view(torch.uint8).float())
    assert (decode(bundle) - _normal(0.02)).norm() < 0.1 * _normal(0.02).norm()
    assert decode(as_numbers).norm() > 100 * decode(bundle).norm()


@pytest.mark.parametrize("std", [1e-4, 0.005, 0.01, 0.02, 0.05, 1.0, 100.0])
@pytest.mark.parametrize("scale_format", list(ScaleFormat))
def test_encoding_what_was_decoded_gives_the_same_bytes(std: float, scale_format: ScaleFormat) -> None:
    first = encode(_normal(std), ScaleRule.SEARCH, scale_format)
    again = encode(decode(first), ScaleRule.SEARCH, scale_format)
    assert torch.equal(first.codes, again.codes) and torch.equal(first.scales.float(), again.scales.float())


@pytest.mark.parametrize("std", [0.005, 0.01, 0.02, 0.05])
def test_a_file_of_the_plain_encoder_is_not_damaged_by_the_search(std: float) -> None:
    first = encode(_normal(std), ScaleRule.AMAX)
    assert torch.equal(decode(encode(decode(first), ScaleRule.SEARCH)), decode(first))


def test_the_plain_encoder_alone_does_damage_at_small_weights() -> None:
    first = encode(_normal(0.01), ScaleRule.AMAX)
    again = encode(decode(first), ScaleRule.AMAX)
    changed = (first.scales.float() != again.scales.float()).float().mean().item()
    error = ((decode(again) - decode(first)).norm() / decode(first).norm()).item()
    assert 0.10 < changed < 0.22 and 0.05 < error < 0.09


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([8, 16, 40, 0x7F]))
def test_any_bundle_whose_blocks_reach_code_2_keeps_its_values(seed: int, highest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (64, 8), generator=generator, dtype=torch.uint8)
    codes[torch.rand(64, 8, generator=generator) < 0.5] &= 0xBB  # fewer large codes
    codes[:, 0] = codes[:, 0] & 0xF0 | torch.randint(4, 8, (64,), generator=generator, dtype=torch.uint8)
    scales = torch.randint(1, highest, (64, 1), generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    values = decode(Bundle(codes, scales))
    assert torch.equal(decode(encode(values, ScaleRule.SEARCH)), values)


@pytest.mark.parametrize(
    ("std", "plain", "search"), [(0.005, 0.118, 0.109), (0.01, 0.126, 0.101), (0.02, 0.103, 0.090), (0.05, 0.096, 0.087)]
)
def test_error_of_the_rules(std: float, plain: float, search: float) -> None:
    weight = _normal(std, 4096)

    def error(rule: ScaleRule) -> float:
        return ((fake_quantize(weight, rule, torch.float32) - weight).norm() / weight.norm()).item()

    assert error(ScaleRule.AMAX) == pytest.approx(plain, abs=0.0015)
    assert error(ScaleRule.SEARCH) < search + 0.0015


@pytest.mark.parametrize("rule", list(ScaleRule))
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 1e-4, 2.0**-10, 3e38])
def test_zero_tiny_and_huge_blocks_stay_numbers(rule: ScaleRule, value: float) -> None:
    bundle = encode(torch.full((2, 32), value), rule, ScaleFormat.FLOAT32 if rule is ScaleRule.FSHARP else ScaleFormat.E4M3)
    assert torch.isfinite(decode(bundle)).all() and (bundle.scales.float() > 0).all()
    if value == 2.0**-10:
        assert (decode(bundle) == value).all() or rule is ScaleRule.FSHARP, "half the smallest scale is a code, not a lost block"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_refused(bad: float) -> None:
    weight = torch.ones(2, 16)
    weight[1, 3] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        encode(weight, ScaleRule.SEARCH)


def test_columns_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        encode(torch.ones(2, 24), ScaleRule.AMAX)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-10, 10, width=32), min_size=16, max_size=16))
def test_the_fsharp_rule_is_its_definition(values: list[float]) -> None:
    weight = torch.tensor([values])
    bundle = encode(weight, ScaleRule.FSHARP, ScaleFormat.FLOAT32)
    scale = np.maximum(np.float32(np.abs(weight.numpy()).max() / np.float32(6)), np.float32(1e-6))
    table = np.array([*E2M1_VALUES, *(-v for v in E2M1_VALUES)], dtype=np.float32)
    codes = [int(np.argmin(np.abs(table - v / scale))) for v in weight.numpy()[0]]
    assert bundle.scales.item() == scale
    assert [int(c) for pair in bundle.codes[0] for c in (pair & 15, pair >> 4)] == codes


@pytest.mark.parametrize("rule", [ScaleRule.AMAX, ScaleRule.SEARCH])
def test_the_forward_weight_is_the_exported_weight(rule: ScaleRule) -> None:
    weight = _normal(0.02).bfloat16()
    assert torch.equal(fake_quantize(weight, rule, torch.float32), decode(encode(weight, rule)))
