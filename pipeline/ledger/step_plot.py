"""The curves of an attempt as a picture: loss, learning rate, gradient norm, effective update ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.files import replacing
from stages.contract.events import Event, EventKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS_NAME = "steps.png"
PANELS = (
    ("loss", "loss", "tab:blue"),
    ("lr", "learning rate", "tab:green"),
    ("grad_norm", "gradient norm", "tab:orange"),
    ("update_ratio", "effective update ratio", "tab:purple"),
)
SMOOTH_FROM = 30
"""Curves of at least this many points also get a smoothed line."""


def plot_steps(events: Sequence[Event], png: Path, title: str = "") -> None:
    """Draws the figures of the step events, a panel each, and replaces `png` atomically.

    A panel without values says so. Values that are not finite are marked at the top edge. Characters outside
    ASCII become `?`, so that no font for them is needed.

    Args:
        events: of a stage; others than `STEP` are passed over.
        png: its folder must exist.
        title: one line.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11, 6.5), dpi=110, layout="constrained")
    steps = [event for event in events if event.kind is EventKind.STEP]
    grid = figure.subplots(2, 2, sharex=True)
    for axes, (name, label, color) in zip(grid.flat, PANELS, strict=True):
        rows = [(event.step, event.values[name]) for event in steps if name in event.values]
        _draw(axes, rows, label, color)
    for axes in grid[1]:
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if title:
        figure.suptitle("".join(char if " " <= char <= "~" else "?" for char in title), fontsize=12)
    with replacing(png) as aside:
        figure.savefig(aside, format="png")


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Exponential moving average, corrected for its start at 0 as in Adam (Kingma and Ba 2015, section 3)."""
    out, mean = [], 0.0
    for count, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        out.append(mean / (1 - weight**count))
    return out


def _draw(axes: Axes, rows: Sequence[tuple[int, float]], label: str, color: str) -> None:
    axes.set_title(label, loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    finite = [(step, value) for step, value in rows if math.isfinite(value)]
    lost = [step for step, value in rows if not math.isfinite(value)]
    if not rows:
        axes.text(0.5, 0.5, "not reported", transform=axes.transAxes, ha="center", color="gray")
        return
    x, y = [step for step, _ in finite], [value for _, value in finite]
    smooth = len(y) >= SMOOTH_FROM and label != "learning rate"
    line: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.4} if smooth else {"linewidth": 1.6}
    axes.plot(x, y, color=color, marker="." if len(y) < 30 else None, **line)
    if smooth:
        axes.plot(x, smoothed(y), color=color, linewidth=1.8, label="moving average")
    if y:
        label_of_last = f"last {y[-1]:.4g} (min {min(y):.4g}, max {max(y):.4g})"
        axes.plot(x[-1], y[-1], "o", color=color, markersize=4, label=label_of_last)
        # A loss or norm over two decades reads better on a logarithmic scale.
        if min(y) > 0 and max(y) > 100 * min(y) and label != "learning rate":
            axes.set_yscale("log")
        elif label == "learning rate" or min(y) >= 0:
            axes.set_ylim(0, 1.08 * max(y) or 1.0)
    if axes.get_yscale() == "linear":
        axes.ticklabel_format(axis="y", scilimits=(-2, 4))
    if lost:
        at_top, heights = axes.get_xaxis_transform(), [0.97] * len(lost)
        axes.plot(lost, heights, "x", color="tab:red", transform=at_top, label="not finite")
    axes.legend(loc="best", fontsize=8, framealpha=0.85)
