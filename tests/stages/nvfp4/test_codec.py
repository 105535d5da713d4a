"""NVFP4 against ml_dtypes and torch's float8, the fixed point of encode after decode, and the error of each
rule.
"""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.recipe import ScaleRule
from stages.nvfp4 import codec
from stages.nvfp4.codec import (
    E2M1_VALUES,
    Bundle,
    ScaleFormat,
    decode,
    encode,
    encode_onto,
    round_e2m1,
)
from stages.nvfp4.fake_quantize import fake_quantize
from stages.weights.bundles import encode_two_level, tensor_scale

BOUNDARIES = torch.tensor(
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 1e30]
)


def _normal(std: float, rows: int = 2048, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(7)) * std


def test_rounding_is_that_of_ml_dtypes() -> None:
    near = [
        BOUNDARIES,
        torch.nextafter(BOUNDARIES, torch.tensor(torch.inf)),
        torch.nextafter(BOUNDARIES, torch.tensor(-1.0)),
    ]
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
        assert torch.equal(decode(bundle, torch.bfloat16).float(), decode(bundle)), (
            "BF16 must hold every value exactly"
        )


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


def _any_bundle(seed: int, scale_format: ScaleFormat, blocks: int = 256) -> Bundle:
    """Random bytes: all codes, blocks with small codes only, zeros of both signs, scales of both signs and
    zero; no NaN scale.
    """
    generator = torch.Generator().manual_seed(seed)

    def chance(share: float, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator) < share

    codes = torch.randint(0, 256, (blocks, 8), generator=generator, dtype=torch.uint8)
    for mask in (0xBB, 0x99, 0xAA, 0x88):  # up to 1.5, 0.5, 1, and zeros
        codes = torch.where(chance(0.25, blocks, 1), codes & mask, codes)
    codes[chance(0.5, blocks, 8) & chance(0.5, blocks, 1)] = 0
    if scale_format is not ScaleFormat.E4M3:
        spread = 10 ** (torch.rand(blocks, 1, generator=generator) * 6 - 4)
        return Bundle(codes, (torch.randn(blocks, 1, generator=generator) * spread).to(scale_format.value))
    raw = torch.randint(0, 256, (blocks, 1), generator=generator, dtype=torch.uint8)
    raw = torch.where(chance(0.5, blocks, 1), raw & 0x9F, raw)  # half of them where E4M3 is coarse
    return Bundle(codes, torch.where((raw & 0x7F) == 0x7F, 1, raw).view(torch.float8_e4m3fn))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(ScaleFormat))
def test_any_bundle_keeps_its_values_and_over_what_was_stored_its_bytes(
    seed: int, scale_format: ScaleFormat
) -> None:
    bundle = _any_bundle(seed, scale_format)
    values = decode(bundle)
    assert torch.equal(decode(encode(values, ScaleRule.SEARCH, scale_format)), values)
    assert torch.equal(fake_quantize(values, ScaleRule.SEARCH, torch.float32, scale_format), values)
    for rule in ScaleRule:
        for dtype in (torch.float32, torch.bfloat16):
            again = encode_onto(bundle, values.to(dtype), rule)
            assert torch.equal(again.codes, bundle.codes)
            assert torch.equal(again.scales.view(torch.uint8), bundle.scales.view(torch.uint8))


def test_no_function_of_the_values_gives_every_bundle_back() -> None:
    """Why `encode_onto` sees what was stored: two bundles, one tensor."""
    scales = torch.tensor([[1.0], [2.0]]).to(torch.float8_e4m3fn)
    codes = torch.tensor([[0x24] * 8, [0x12] * 8], dtype=torch.uint8)  # 2 and 1; 1 and 0.5
    values = decode(Bundle(codes, scales))
    assert torch.equal(values[0], values[1])
    encoded = encode(values, ScaleRule.SEARCH)
    assert torch.equal(encoded.codes[0], encoded.codes[1]) and torch.equal(decode(encoded), values)


def test_one_trained_block_leaves_its_neighbours_bytes_alone() -> None:
    bundle = _any_bundle(3, ScaleFormat.E4M3, 32)
    bundle = Bundle(bundle.codes.view(8, 32), bundle.scales.view(8, 4))
    values = decode(bundle)
    values[2, 20] += 1.0
    again = encode_onto(bundle, values, ScaleRule.SEARCH)
    changed = (again.codes != bundle.codes).view(8, 4, 8).any(2) | (
        again.scales.float() != bundle.scales.float()
    )
    assert changed.nonzero().tolist() == [[2, 1]]
    assert torch.equal(decode(again)[2, 16:32], decode(encode(values, ScaleRule.SEARCH))[2, 16:32])


@pytest.mark.parametrize(
    ("std", "plain", "search"),
    [(0.005, 0.118, 0.109), (0.01, 0.126, 0.101), (0.02, 0.103, 0.090), (0.05, 0.096, 0.087)],
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
    bundle = encode(
        torch.full((2, 32), value),
        rule,
        ScaleFormat.FLOAT32 if rule is ScaleRule.FSHARP else ScaleFormat.E4M3,
    )
    assert torch.isfinite(decode(bundle)).all() and (bundle.scales.float() > 0).all()
    if value == 2.0**-10:
        assert (decode(bundle) == value).all() or rule is ScaleRule.FSHARP, (
            "half the smallest scale is a code, not a lost block"
        )


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


@pytest.mark.parametrize("scale_format", list(ScaleFormat))
@pytest.mark.parametrize("rule", list(ScaleRule))
@pytest.mark.parametrize("std", [1e-7, 1e-3, 0.02, 1000.0])
def test_the_forward_weight_is_the_exported_weight(
    rule: ScaleRule, scale_format: ScaleFormat, std: float
) -> None:
    weight = _normal(std, 256).bfloat16()
    exported = decode(encode(weight, rule, scale_format))
    assert (
        torch.equal(fake_quantize(weight, rule, torch.float32, scale_format), exported)
        and torch.isfinite(exported).all()
    )


def test_infinities_saturate_in_rounding_and_are_refused_by_the_encoder() -> None:
    infinite = torch.tensor([torch.inf, -torch.inf])
    assert round_e2m1(infinite).tolist() == [6.0, -6.0]
    assert infinite.numpy().astype(ml_dtypes.float4_e2m1fn).astype(np.float32).tolist() == [6.0, -6.0]


@pytest.mark.parametrize("std", [0.05, 0.2, 1.0, 30.0])
def test_packing_and_scales_are_torchaos_where_the_definitions_coincide(std: float) -> None:
    """torchao's one-level encoder is the rule `amax` with two differences, both shown below.

    It multiplies by the scale's float32 reciprocal instead of dividing, which may turn values within a unit
    in the last place of a boundary; and it lets no scale fall below 2^-6, E4M3's smallest normal value, where
    this project goes down to 2^-9.
    """
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    weight = _normal(std, 1024)
    scales, packed = nvfp4_quantize(weight)
    ours = encode(weight, ScaleRule.AMAX)
    scales = scales.view(ours.scales.shape)
    clamped = (ours.scales.float() <= 2.0**-6) & (scales.float() == 2.0**-6)
    assert torch.equal(ours.scales.float()[~clamped], scales.float()[~clamped])
    same = (ours.codes == packed).view(1024, -1, 8)[~clamped]
    assert same.float().mean() > 0.9999
    assert bool(clamped.any()) == (std == 0.05), "only small weights reach the clamp"
    if std == 0.05:
        error = {
            name: (decode(b) - weight).norm()
            for name, b in (("ours", ours), ("torchao", Bundle(packed, scales)))
        }
        assert error["ours"] < error["torchao"], "the clamp costs what it cuts off"
    tiny = torch.full((1, 16), 2.0**-9)
    assert decode(Bundle(*reversed(nvfp4_quantize(tiny)))).abs().max() == 0.0, "torchao loses a block of 2^-9"
    assert torch.equal(decode(encode(tiny, ScaleRule.AMAX)), tiny)


def test_unpacking_is_torchaos() -> None:
    from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4

    codes = torch.arange(256, dtype=torch.uint8).view(32, 8)
    ours = decode(Bundle(codes, torch.ones(32, 1).to(torch.float8_e4m3fn)))
    assert torch.equal(ours, f4_unpacked_to_f32(unpack_uint4(codes)))


@pytest.mark.parametrize(
    ("std", "plain", "search"),
    [(0.005, 0.0965, 0.0885), (0.01, 0.0965, 0.0885), (0.02, 0.0965, 0.0885), (0.05, 0.0965, 0.0885)],
)
def test_two_levels_have_one_error_at_every_size(std: float, plain: float, search: float) -> None:
    weight = _normal(std, 1024)
    top = tensor_scale(float(weight.abs().max()))

    def error(rule: ScaleRule) -> float:
        return ((decode(encode_two_level(weight, top, rule)) * top - weight).norm() / weight.norm()).item()

    assert error(ScaleRule.AMAX) < plain and error(ScaleRule.SEARCH) < search


@pytest.mark.slow
def test_the_search_takes_at_most_four_times_the_plain_encoder() -> None:
    weight = _normal(0.02, 512, 2560).bfloat16()
    best = {rule: float("inf") for rule in (ScaleRule.AMAX, ScaleRule.SEARCH)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for work would count as time
    for _ in range(7):
        for rule in best:
            start = time.process_time()
            encode(weight, rule)
            best[rule] = min(best[rule], time.process_time() - start)
    torch.set_num_threads(threads)
    assert best[ScaleRule.SEARCH] <= 4 * best[ScaleRule.AMAX]


@pytest.mark.parametrize("std", [0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 1.0, 30.0])
def test_few_candidates_compared_in_bf16_are_nearly_the_best_of_all_scales(std: float) -> None:
    weight = _normal(std, 512).bfloat16().float()
    magnitudes = weight.view(-1, 16).t().abs().contiguous()
    every = torch.arange(1, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    _, best = codec._smallest_error(
        magnitudes, (scale.expand(magnitudes.shape[1]) for scale in every), codec._float_error
    )
    _, exact = codec._smallest_error(
        magnitudes, codec._e4m3_candidates(magnitudes.amax(0)), codec._float_error
    )
    found = (fake_quantize(weight, ScaleRule.SEARCH, torch.float32) - weight).square().sum()
    assert found <= exact.sum() * (1 + 2e-5)
    assert found.sqrt() <= best.sum().sqrt() * 1.025
