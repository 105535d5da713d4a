"""The ring buffers of rounded weights and gradients, on a CPU, where all work is done at once."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from stages.engine.streams import GradientBuffer, SideStream, WeightPrefetcher
from stages.memory.limits import RING_SLOTS

CPU = torch.device("cpu")


def test_weights_are_as_written_in_any_order_of_sizes() -> None:
    """Every weight holds its own values when it is taken, for random orders with repetitions, and after the
    first step made ahead.
    """
    generator = random.Random(3)
    for _ in range(50):
        sizes = {key: (generator.randint(1, 40), generator.choice((1, 16, 100))) for key in range(8)}
        largest = max(rows * columns for rows, columns in sizes.values())
        order = [generator.randrange(8) for _ in range(30)]
        weights, written = WeightPrefetcher(largest, torch.float32, CPU), []

        def write(out: torch.Tensor, key: int, written: list[int] = written) -> None:
            written.append(key)
            out.fill_(key)

        for step in range(3):
            written.clear()
            for key in order:
                out = weights.get(key, *sizes[key], lambda out, key=key: write(out, key))  # type: ignore[misc]
                assert out.shape == sizes[key] and bool((out == key).all()), (step, key)
            weights.reset()
            assert set(written) == set(order) and len(written) <= len(order)


def test_a_weight_that_is_still_there_is_not_made_again() -> None:
    weights, written = WeightPrefetcher(256, torch.float32, CPU), []
    for _ in range(2):
        written.clear()
        for key in "abccba":
            weights.get(key, 16, 16, lambda out, key=key: written.append(key))  # type: ignore[misc]
        weights.reset()
        assert "".join(written) == "abc"


def test_another_order_is_refused() -> None:
    weights = WeightPrefetcher(64, torch.float32, CPU)
    weights.get("a", 8, 8, lambda out: None)
    weights.reset()
    with pytest.raises(RuntimeError, match="weight 0 of the step is b, and was a"):
        weights.get("b", 8, 8, lambda out: None)


def test_gradients_in_use_at_once_do_not_overlap() -> None:
    gradients = GradientBuffer(100, torch.float32, CPU, SideStream(CPU))
    places = []
    for rows in (100, 30, 100, 60, 70):
        with gradients.use(rows, 1) as out:
            places.append((out.data_ptr(), out.data_ptr() + 4 * rows))
    assert places[0] != places[1]
    for (_, end), (start, _) in itertools.pairwise(places):
        assert end <= start or start == places[0][0], "one after the other, or from the beginning again"
    assert max(end for _, end in places) - places[0][0] <= 4 * (RING_SLOTS * 100 + 256)
