"""Random bits: reproducible, and each as often 1 as 0."""

from __future__ import annotations

import torch

from stages.optim.noise import hash32, key_of, random_bits

CPU = torch.device("cpu")


def test_random_bits_are_a_pure_function_of_their_place() -> None:
    whole = random_bits(99, 0, 1000, CPU)
    assert torch.equal(whole[300:700], random_bits(99, 300, 400, CPU))
    assert [int(x) & 0xFFFFFFFF for x in random_bits(0, 5, 1, CPU)] == [hash32(5)]
    bits = random_bits(key_of(1, 2, 3), 0, 1 << 16, CPU)
    ones = torch.stack([(bits >> i) & 1 for i in range(32)]).float().mean(1)
    assert ((ones - 0.5).abs() < 0.02).all()


def test_keys_differ_by_seed_step_and_tensor() -> None:
    keys = {key_of(seed, step, index) for seed in range(3) for step in range(3) for index in range(3)}
    assert len(keys) == 27 and all(0 <= key < 1 << 32 for key in keys)


def test_the_hash_is_lowbias32() -> None:
    """Values of its reference implementation in C."""
    assert [hash32(x) for x in (0, 1, 0xFFFFFFFF)] == [0, 1753845952, 1734902346]
