"""The curves of an attempt: drawn for whatever a stage reported, and never half a file."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from matplotlib.image import imread

from pipeline.ledger.step_plot import plot_steps, smoothed
from stages.contract.events import Event, EventKind
from tests.pipeline.ledger.samples import step


def blue(png: Path) -> int:
    """How many pixels have the colour of the loss curve, or nearly."""
    image = imread(png)[:, :, :3]
    return int(((image[:, :, 2] > image[:, :, 0] + 0.3) & (image[:, :, 1] < image[:, :, 2])).sum())


@pytest.mark.parametrize("count", [0, 1, 2, 200])
def test_any_number_of_steps_is_drawn(tmp_path: Path, count: int) -> None:
    plot_steps([step(i + 1, 1 + math.sin(i)) for i in range(count)], tmp_path / "steps.png", "題目 title")
    assert imread(tmp_path / "steps.png").shape[1] > 1000
    assert (blue(tmp_path / "steps.png") > 20) == (count > 0)
    assert [path.name for path in tmp_path.iterdir()] == ["steps.png"]


def test_values_that_are_not_finite_are_marked_and_do_not_spoil_the_rest(tmp_path: Path) -> None:
    losses = [1.0, math.nan, math.inf, 2.0, 1.5]
    plot_steps([step(i + 1, loss) for i, loss in enumerate(losses)], tmp_path / "bad.png")
    image = imread(tmp_path / "bad.png")[:, :, :3]
    red = (image[:, :, 0] > 0.7) & (image[:, :, 1] < 0.35) & (image[:, :, 2] < 0.35)
    assert red.sum() > 20
    assert blue(tmp_path / "bad.png") > 20


def test_figures_that_no_event_carries_are_said_to_be_missing(tmp_path: Path) -> None:
    plot_steps(
        [Event("2026-01-01T00:00:00.000000Z", EventKind.STEP, step=1, values={"lr": 1.0})], tmp_path / "a.png"
    )
    assert blue(tmp_path / "a.png") == 0


def test_average_of_a_constant_is_the_constant() -> None:
    assert smoothed([3.0] * 50) == pytest.approx([3.0] * 50)
    rising = smoothed([float(i) for i in range(50)])
    assert all(later > earlier for earlier, later in itertools.pairwise(rising))
