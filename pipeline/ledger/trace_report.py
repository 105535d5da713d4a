"""The memory of an attempt: phases in the format of the F# trainer's JSON report, samples as a plot."""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.files import replacing
from pipeline.guard.trace import MemorySample
from stages.contract.clock import utc_seconds, utc_text
from stages.contract.events import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MIB_PER_GIB = 1024.0
LABEL_CHAR_SHARE = 0.0085
"""Width of a label's character, with a little space, as a share of the width of the plot (11 inches)."""


def phases_report(samples: Sequence[MemorySample], phases: Sequence[Event], pid: int) -> dict[str, Any]:
    """The memory at each phase, with the fields and units of the F# trainer's report.

    `PidMemoryMiB` is the stage's own figure where the event carries one (`values["device_mib"]`), else the
    guard's sample nearest in time; `TotalMemoryMiB` is that sample's total. Both are whole MiB; without any
    sample they fall back on the stage's figure, or 0. Times have the seven decimals that .NET writes.

    Args:
        samples: as `load_samples` gives them, in order of time.
        phases: the stage's phase events, in order; may be none.
        pid: of the command.
    """
    times = [utc_seconds(sample.time_utc) for sample in samples]
    rows = []
    for event in phases:
        nearest = _nearest(times, utc_seconds(event.time_utc))
        own = event.values.get("device_mib")
        pid_mib = own if own is not None else (samples[nearest].pid_mib if samples else 0.0)
        total_mib = samples[nearest].total_mib if samples else pid_mib
        row = {"TimestampUtc": _dotnet(event.time_utc), "Phase": event.phase}
        rows.append(row | {"PidMemoryMiB": round(pid_mib), "TotalMemoryMiB": round(total_mib)})
    return {"Pid": pid, "CreatedUtc": _dotnet(utc_text(time.time())), "Samples": rows}


def _nearest(times: Sequence[float], moment: float) -> int:
    """Index of the time nearest to `moment`; `times` rise."""
    after = bisect.bisect_left(times, moment)
    if after == 0 or (after < len(times) and times[after] - moment < moment - times[after - 1]):
        return after
    return after - 1


def _dotnet(time_utc: str) -> str:
    return time_utc.removesuffix("Z") + "0Z"


def plot_trace(
    samples: Sequence[MemorySample], phases: Sequence[Event], limit_gb: float, title: str, png_path: Path
) -> None:
    """Draws memory over time with the limit and the phases, and replaces `png_path` by the picture.

    The first of each phase is named above the plot; its repetitions are only marked. Characters outside ASCII
    become `?`, so that no font for them is needed.

    Args:
        samples: as `load_samples` gives them; may be none or one.
        phases: the stage's phase events, in order; may be none.
        limit_gb: the guard's limit (GB of 1024 MiB); 0 draws none.
        title: one line.
        png_path: its folder must exist.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    draw_trace(figure, samples, phases, limit_gb, title)
    with replacing(png_path) as aside:
        figure.savefig(aside, format="png")


def draw_trace(
    figure: Figure, samples: Sequence[MemorySample], phases: Sequence[Event], limit_gb: float, title: str
) -> None:
    """Draws on a figure of 11 inches width; arguments as for `plot_trace`."""
    axes = figure.add_subplot()
    times = [utc_seconds(sample.time_utc) for sample in samples]
    marks = [utc_seconds(event.time_utc) for event in phases]
    start = min([*times, *marks], default=0.0)
    end = max([*times, *marks, start + 1.0])
    room = LABEL_CHAR_SHARE * max((len(event.phase) + 2 for event in phases), default=2)
    axes.set_xlim(-0.01 * (end - start), (1 + 1.2 * room) * (end - start))
    memory = [sample.pid_mib / MIB_PER_GIB for sample in samples]
    _draw_memory(axes, [moment - start for moment in times], memory, limit_gb)
    _draw_phases(axes, [mark - start for mark in marks], [event.phase for event in phases])
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("memory of the process tree (GiB)")
    axes.grid(alpha=0.25)
    figure.suptitle(_ascii(title), fontsize=12)


def _draw_memory(axes: Axes, seconds: Sequence[float], memory: Sequence[float], limit_gb: float) -> None:
    top = max([*memory, 0.0])
    axes.fill_between(seconds, memory, color="tab:blue", alpha=0.12, linewidth=0)
    axes.plot(seconds, memory, color="tab:blue", linewidth=1.5, marker="o" if len(memory) < 2 else None)
    if memory:
        at = memory.index(top)
        label = f"peak {top:.2f} GiB at {seconds[at]:.1f} s"
        axes.plot(seconds[at], top, "v", color="tab:blue", markersize=7, label=label)
    else:
        axes.text(0.5, 0.5, "no samples", transform=axes.transAxes, ha="center", color="gray", fontsize=14)
    # A limit far above the memory would press the curve flat: then only the legend names it.
    outside = bool(memory) and limit_gb > 4 * top > 0
    if limit_gb > 0:
        label = f"limit {limit_gb:g} GiB" + (" (above the plot)" if outside else "")
        axes.plot([], [], color="tab:red", linestyle="--", label=label)
        if not outside:
            axes.axhline(limit_gb, color="tab:red", linestyle="--", linewidth=1.3)
    axes.set_ylim(0, 1.08 * max(top, 0.0 if outside else limit_gb, 0.001))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", framealpha=0.9)


def _draw_phases(axes: Axes, seconds: Sequence[float], names: Sequence[str]) -> None:
    left, right = axes.get_xlim()
    first: dict[str, float] = {}
    for moment, name in sorted(zip(seconds, names, strict=True), key=lambda pair: pair[0]):
        axes.axvline(moment, color="tab:gray", linestyle=":", linewidth=0.6, alpha=0.4)
        first.setdefault(name, moment)
    width = LABEL_CHAR_SHARE * (right - left)
    placed: list[tuple[float, int]] = []
    # From the right: a label lies above every later mark that it reaches over, so no line crosses a text.
    for name, moment in reversed(first.items()):
        reach = moment + width * (len(name) + 1)
        lane = 1 + max((other for mark, other in placed if mark < reach), default=-1)
        placed.append((moment, lane))
        height = 1.015 + 0.045 * lane
        across = axes.get_xaxis_transform()  # x in seconds, y as a share of the plot's height
        style: dict[str, Any] = {"color": "tab:gray", "linewidth": 1.0, "transform": across}
        axes.plot([moment, moment], [0, height + 0.03], ":", clip_on=False, **style)
        axes.text(moment + 0.4 * width, height, _ascii(name), transform=across, fontsize=8, va="bottom")


def _ascii(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)
