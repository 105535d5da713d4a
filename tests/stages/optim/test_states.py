"""8-bit optimizer states: bounded error, nothing positive lost, no explosion."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.optim.noise import hash32, key_of, random_bits
from stages.optim.states import STATE_BLOCK, State8, State32

CPU = torch.device("cpu")


def _round_trip(average: torch.Tensor, root: torch.Tensor, key: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    state, piece = State8.zeros(len(average), CPU), slice(0, len(average))
    state.store(piece, average, root, random_bits(key, 0, len(average), CPU))
    return state.load(piece)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3 * STATE_BLOCK), st.floats(-14, 10))
def test_errors_are_bounded_and_no_positive_second_moment_becomes_zero(
    seed: int, count: int, exponent: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    spread = 10 ** (
        torch.rand(count, generator=generator) * 8 - 4
    )  # one block mixes eight orders of magnitude
    average = torch.randn(count, generator=generator) * spread * 10**exponent
    root = (torch.rand(count, generator=generator) * spread * 10**exponent).float()
    got_average, got_root = _round_trip(average, root, seed)
    largest = torch.stack([b.abs().max() for b in average.split(STATE_BLOCK)]).repeat_interleave(STATE_BLOCK)[
        :count
    ]
    assert (
        (got_average - average).abs() <= (2 / 127) * (average.abs() * largest).sqrt() + largest / 127**2
    ).all()
    assert (got_root[root > 0] > 0).all() and (got_root[root == 0] == 0).all()
    assert torch.isfinite(got_average).all() and torch.isfinite(got_root).all()


def test_the_codes_of_the_second_moment_are_unbiased() -> None:
    root = torch.full((STATE_BLOCK * 400,), 0.1234)
    root[::STATE_BLOCK] = 1.0
    _, got = _round_trip(torch.zeros_like(root), root, key_of(3, 1, 0))
    rest = got[root != 1.0]
    assert rest.unique().numel() == 2
    assert rest.mean().item() == pytest.approx(0.1234, rel=1e-3)


def test_a_small_growth_is_not_lost_for_good() -> None:
    """Nearest codes would freeze: beta2 = 0.999 moves a second moment by less than half a code a step."""
    state, piece = State8.zeros(STATE_BLOCK, CPU), slice(0, STATE_BLOCK)
    root = torch.full((STATE_BLOCK,), 0.5)
    root[0] = 1.0
    state.store(piece, torch.zeros(STATE_BLOCK), root, random_bits(0, 0, STATE_BLOCK, CPU))
    for step in range(1500):
        _, root = state.load(piece)
        square = root.square() * 0.999 + 0.001 * torch.where(torch.arange(STATE_BLOCK) == 0, 1.0, 0.5)
        state.store(
            piece, torch.zeros(STATE_BLOCK), square.sqrt(), random_bits(hash32(step), 0, STATE_BLOCK, CPU)
        )
    mean = state.load(piece)[1][1:].square().mean().item()
    exact = 0.5 + (0.25 - 0.5) * 0.999**1500
    assert mean == pytest.approx(exact, rel=0.05)


def test_float32_states_are_exact() -> None:
    state, piece = State32.zeros(10, CPU), slice(0, 10)
    average, root = torch.randn(10), torch.rand(10)
    state.store(piece, average, root, torch.zeros(10, dtype=torch.int32))
    assert torch.equal(state.load(piece)[0], average) and torch.equal(state.load(piece)[1], root)
