"""The fused update against the plain one, on a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from stages.contract.recipe import OptimizerStateMode, Rounding
from stages.optim.adamw import AdamW, AdamWSettings
from stages.optim.factory import make_optimizer
from stages.optim.states import UPDATE_CHUNK

pytestmark = pytest.mark.gpu


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


def test_a_parameter_in_chunks_is_the_whole_one() -> None:
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.0, OptimizerStateMode.INT8, Rounding.STOCHASTIC, 1024, 7)
    masters = [
        torch.nn.Parameter(torch.full((3000,), 0.02, dtype=torch.bfloat16, device="cuda")) for _ in range(2)
    ]
    optimizers = [make_optimizer({"a": m}, settings) for m in masters]
    for step in (1, 2):
        grad = torch.randn(3000, device="cuda")
        for optimizer, master, starts in zip(
            optimizers, masters, ([0, 3000], [0, UPDATE_CHUNK, 2 * UPDATE_CHUNK, 3000]), strict=True
        ):
            optimizer.begin_step(step, 1e-3)
            for first, last in itertools.pairwise(starts):
                optimizer.update("a", master.data, grad[first:last], 1.0, None, first)
    assert torch.equal(masters[0], masters[1])
    for key, tensor in optimizers[0].states["a"].tensors().items():
        assert torch.equal(tensor, optimizers[1].states["a"].tensors()[key])
    assert optimizers[0].take_update_ratio() == pytest.approx(optimizers[1].take_update_ratio())


@pytest.mark.parametrize("rounding", list(Rounding))
def test_many_together_are_one_by_one(rounding: Rounding) -> None:
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
        together.update_many({name: m.data for name, m in masters[1].items()}, grads, rates, clip)
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
