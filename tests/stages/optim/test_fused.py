"""The Triton kernels against the plain PyTorch path, on a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from stages.contract import OptimizerStateMode, Rounding, ScaleRule
from stages.nvfp4.codec import encode, fake_quantize
from stages.optim.adamw import AdamW, AdamWSettings, make_optimizer

pytestmark = pytest.mark.gpu


def _weight(std: float, dtype: torch.dtype) -> torch.Tensor:
    weight = (torch.randn(512, 256, generator=torch.Generator().manual_seed(1)) * std).to(dtype)
    weight[0, :16] = 0
    # Blocks that were decoded: their values lie on the grid, and halfway between two codes of the other
    # candidates.
    weight[256:] = fake_quantize(weight[256:], ScaleRule.AMAX, torch.float32).to(dtype)
    return weight


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


@pytest.mark.parametrize("kind", range(4))
def test_every_size_of_block_finds_the_references_scale(kind: int) -> None:
    """The kernel finds codes in half precision, and the blocks with more candidates by a few of their values."""
    weight = _blocks_of_every_size(kind)
    on_gpu = fake_quantize(weight.cuda(), ScaleRule.SEARCH, torch.float32).cpu()
    expected = fake_quantize(weight, ScaleRule.SEARCH, torch.float32)
    wrong = (on_gpu.view(torch.int32) != expected.view(torch.int32)).any(dim=1)
    assert not wrong.any(), (int(wrong.sum()), weight[wrong][:1], on_gpu[wrong][:1], expected[wrong][:1])


def test_nan_stays_for_the_loss_to_show_it() -> None:
    weight = torch.randn(4, 64, device="cuda").bfloat16()
    weight[2, 5] = float("nan")
    for rule in (ScaleRule.AMAX, ScaleRule.SEARCH):
        assert fake_quantize(weight, rule, torch.bfloat16).isnan()[2, 5]


@pytest.mark.parametrize("std", [1e-4, 0.02, 1.0, 300.0])
@pytest.mark.parametrize("rule", [ScaleRule.AMAX, ScaleRule.SEARCH])
def test_kept_scales_are_the_encoders_and_give_the_same_values(std: float, rule: ScaleRule) -> None:
    from stages.nvfp4.fused import round_into

    weight = _weight(std, torch.bfloat16)
    weight = torch.cat((weight, weight[:3]))  # no multiple of a program's blocks
    on_gpu, scales = weight.cuda(), torch.full((weight.numel() // 16,), 255, dtype=torch.uint8, device="cuda")
    first, second = torch.full_like(on_gpu, float("nan")), torch.full_like(on_gpu, float("nan"))
    round_into(on_gpu, first, scales, rule=rule)
    assert torch.equal(scales.cpu(), encode(weight, rule).scales.view(torch.uint8).flatten())
    round_into(on_gpu, second, scales, rule=rule, known=True)
    expected = fake_quantize(weight, rule, torch.bfloat16).view(torch.int16)
    assert torch.equal(first.cpu().view(torch.int16), expected) and torch.equal(
        second.cpu().view(torch.int16), expected
    )


@pytest.mark.parametrize("shape", [(40, 48), (64,), (1000, 256), (3000,)])
@pytest.mark.parametrize("rounding", list(Rounding))
def test_the_update_is_the_references(shape: tuple[int, ...], rounding: Rounding) -> None:
    """Each step starts from the same states: a code that tips on the last bit of a sum would otherwise grow
    to a real difference.
    """
    torch.manual_seed(3)
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.1, OptimizerStateMode.INT8, rounding, 1024, 7)
    dtype = torch.float32 if rounding is Rounding.FP32 else torch.bfloat16
    start = (torch.randn(*shape) * 0.02).to(dtype)
    plain, fused = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.cuda())
    reference, optimizer = AdamW({"a": plain}, settings), make_optimizer({"a": fused}, settings)
    assert type(optimizer).__name__ == "FusedAdamW"
    for step in range(1, 6):
        grad = (torch.randn(*shape) * 10 ** (torch.rand(*shape) * 4 - 2)).bfloat16()
        clip = torch.tensor(0.5)
        for one, master, g, c in (
            (reference, plain, grad, clip),
            (optimizer, fused, grad.cuda(), clip.cuda()),
        ):
            one.begin_step(step, 1e-3)
            one.update("a", master.data, g, 2.0, c)
        assert optimizer.take_update_ratio() == pytest.approx(reference.take_update_ratio(), rel=1e-4)
        theirs, ours = reference.states["a"].tensors(), optimizer.states["a"].tensors()
        for key in ("exp_avg", "exp_avg_sq"):
            off = (theirs[key].int() - ours[key].cpu().int()).abs()
            assert int(off.max()) <= 1 and float((off > 0).float().mean()) < 2e-3, (step, key)
            torch.testing.assert_close(ours[f"{key}_scale"].cpu(), theirs[f"{key}_scale"], rtol=1e-5, atol=0)
        a, b = plain.detach().float(), fused.detach().cpu().float()
        if rounding is Rounding.FP32:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
        else:  # one rounding in thousands may tip to the neighbour
            torch.testing.assert_close(a, b, rtol=2**-7, atol=1e-7)
            assert float((a != b).float().mean()) < 2e-3
        for key, tensor in ours.items():
            tensor.copy_(theirs[key])
        fused.data.copy_(plain.data)


def test_a_parameter_in_pieces_is_the_whole_one() -> None:
    from stages.optim.fused import CHUNK

    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.0, OptimizerStateMode.INT8, Rounding.STOCHASTIC, 1024, 7)
    masters = [
        torch.nn.Parameter(torch.full((3000,), 0.02, dtype=torch.bfloat16, device="cuda")) for _ in range(2)
    ]
    optimizers = [make_optimizer({"a": m}, settings) for m in masters]
    for step in (1, 2):
        grad = torch.randn(3000, device="cuda")
        for optimizer, master, pieces in zip(
            optimizers, masters, ([0, 3000], [0, CHUNK, 2 * CHUNK, 3000]), strict=True
        ):
            optimizer.begin_step(step, 1e-3)
            for first, last in itertools.pairwise(pieces):
                optimizer.update("a", master.data, grad[first:last], 1.0, None, first)
    assert torch.equal(masters[0], masters[1])
    for key, tensor in optimizers[0].states["a"].tensors().items():
        assert torch.equal(tensor, optimizers[1].states["a"].tensors()[key])
    assert optimizers[0].take_update_ratio() == pytest.approx(optimizers[1].take_update_ratio())


@pytest.mark.parametrize("rounding", list(Rounding))
def test_vectors_together_are_one_by_one(rounding: Rounding) -> None:
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.1, OptimizerStateMode.INT8, rounding, 1024, 7)
    dtype = torch.float32 if rounding is Rounding.FP32 else torch.bfloat16
    sizes = {"a": 2560, "b": 128, "c": 48, "d": 1024}
    start = {name: torch.randn(size).to(dtype).cuda() for name, size in sizes.items()}
    masters = [{name: torch.nn.Parameter(t.clone()) for name, t in start.items()} for _ in range(2)]
    one, together = (make_optimizer(m, settings) for m in masters)
    clip, rates = torch.tensor(0.5, device="cuda"), [1.0, 2.0, 0.0, 3.0]
    for step in (1, 2, 3):
        grads = torch.randn(sum(sizes.values()), device="cuda")
        for optimizer in (one, together):
            optimizer.begin_step(step, 1e-3)
        for (name, master), grad, rate in zip(
            masters[0].items(), grads.split(list(sizes.values())), rates, strict=True
        ):
            one.update(name, master.data, grad, rate, clip)
        together.update_vectors({name: m.data for name, m in masters[1].items()}, grads, rates, clip)
    for name in sizes:
        torch.testing.assert_close(
            masters[0][name], masters[1][name], rtol=1e-6 if rounding is Rounding.FP32 else 2**-7, atol=0
        )
        for key, tensor in (
            one.states[name].tensors().items()
        ):  # two kernels: the last bit of a sum may differ
            torch.testing.assert_close(
                tensor, together.states[name].tensors()[key], rtol=1e-6, atol=1 if "scale" not in key else 0
            )
    assert one.take_update_ratio() == pytest.approx(together.take_update_ratio())
